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
FILES = [
    "agent_communication.proto",
    "cipd.proto",
    "cipd_plugin.proto",
    "host.proto",
    "plugin_comm.proto",
    "google/rpc/status.proto",
]


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


def host(options=(("grpc.default_authority", "localhost"),)):
    """A channel to the agent's host socket, and the metadata of every call.

    Without the option, gRPC names the escaped path of the socket as its server (`%2Frun%2Fhost.sock`). That is not
    an authority of HTTP/2, so the agent's server resets the call with PROTOCOL_ERROR.
    """
    import grpc

    channel = grpc.insecure_channel("unix:" + os.environ["GUEST_AGENT_HOST_SOCKET"], options=options)
    return channel, [("authorization", "Bearer " + os.environ["GUEST_AGENT_TICKET"])]


def serve(plugin):
    """Serves a plugin where the agent's arguments say, until its `stopped` is set."""
    from concurrent import futures

    import grpc

    (services,) = modules("plugin_comm_pb2_grpc")
    named = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--"))
    os.umask(0o077)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services.add_GuestAgentPluginServicer_to_server(plugin, server)
    server.add_insecure_port("unix:" + named["address"] if named["protocol"] == "unix" else named["address"])
    server.start()
    plugin.stopped.wait()
    # Answers what it was asked before it goes.
    server.stop(grace=1).wait()


if __name__ == "__main__":
    generate(sys.argv[1])
