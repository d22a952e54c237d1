"""A plugin in Python that offers greetings in the agent's registry, as `registry_provider.rs` does in Rust.

Its own argument is the greeting. Questions: `offer NAME VERSION` registers another name, `withdraw NAME` takes one
back.
"""

import os
import pathlib
import socketserver
import sys
import threading

import grpc
import scaffold

pb, pb_grpc, host, host_grpc = scaffold.modules(
    "plugin_comm_pb2", "plugin_comm_pb2_grpc", "host_pb2", "host_pb2_grpc"
)


class Greeting(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            self.request.sendall(self.server.greeting.encode())
        except OSError:
            pass  # the agent connects to see whether somebody listens, and leaves


class Provider(pb_grpc.GuestAgentPluginServicer):
    def __init__(self, greeting):
        self.stopped = threading.Event()
        self.greeting = greeting
        self.socket = None
        channel, self.metadata = scaffold.host()
        self.registrar = host_grpc.RegistrarStub(channel)

    def Start(self, request, context):
        self.socket = pathlib.Path(request.config.state_directory_path) / "greet.sock"
        self.socket.unlink(missing_ok=True)  # of a former process
        server = socketserver.ThreadingUnixStreamServer(str(self.socket), Greeting)
        server.greeting = self.greeting
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.offer("hello", self.greeting)
        return pb.StartResponse()

    def offer(self, name, version):
        # Listen first: the agent connects to the socket before it takes the offer.
        offer = host.Offer(type="greeter", name=name, version=version, socket_path=str(self.socket))
        offer.options["pid"] = str(os.getpid())
        self.registrar.Register(host.RegisterRequest(offer=offer), metadata=self.metadata, timeout=10)

    def GetStatus(self, request, context):
        if not request.HasField("data"):
            return pb.Status()
        try:
            verb, *rest = request.data.split(" ")
            if verb == "offer":
                self.offer(*rest)
            else:
                gone = host.DeregisterRequest(type="greeter", name=rest[0])
                self.registrar.Deregister(gone, metadata=self.metadata, timeout=10)
        except grpc.RpcError as error:
            return pb.Status(code=1, results=[f"{error.code().name}: {error.details()}"])
        return pb.Status(results=["done"])

    def Stop(self, request, context):
        self.stopped.set()
        return pb.StopResponse()


scaffold.serve(Provider(sys.argv[1]))
