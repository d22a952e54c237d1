"""What the Python programs of the tests share: messages made of the project's own .proto files.

The modules are generated once into the folder that GUEST_AGENT_PYTHON_GEN names; the tests set it to one
beside the environment that has grpcio. Nothing here is written for the agent: it is what anybody would do
who writes a plugin in Python from the .proto files alone.
"""

import importlib
import os
import pathlib
import sys

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto" / "proto"
FILES = ["cipd.proto", "cipd_plugin.proto", "plugin_comm.proto", "google/rpc/status.proto"]


def generate(folder):
    """Writes the Python modules of the .proto files."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    arguments = [
        "protoc",
        f"-I{PROTO}",
        f"-I{well_known}",
        f"--python_out={folder}",
        f"--grpc_python_out={folder}",
    ]
    code = protoc.main(arguments + [str(PROTO / file) for file in FILES])
    if code != 0:
        raise SystemExit(f"protoc failed with {code}")


def modules(*names):
    """Generated modules by their names: `x_pb2` has the messages of `x.proto`, `x_pb2_grpc` its services."""
    sys.path.insert(0, os.environ["GUEST_AGENT_PYTHON_GEN"])
    return [importlib.import_module(name) for name in names]


if __name__ == "__main__":
    generate(sys.argv[1])
