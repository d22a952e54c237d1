"""A plugin in Python that uses what others offer in the agent's registry, as `registry_consumer.rs` does in Rust.

Questions: `greet NAME` waits for a provider and asks it for its greeting, `now NAME` does not wait, `heard` lists
the changes of the type since the start, `plain` gives the code of a call on a channel without an authority of its
own.
"""

import socket
import threading
import time

import grpc
import scaffold

pb, pb_grpc, host, host_grpc = scaffold.modules(
    "plugin_comm_pb2", "plugin_comm_pb2_grpc", "host_pb2", "host_pb2_grpc"
)


class Consumer(pb_grpc.GuestAgentPluginServicer):
    def __init__(self):
        self.stopped = threading.Event()
        self.heard = []
        channel, self.metadata = scaffold.host()
        self.registry = host_grpc.RegistryStub(channel)

    def Start(self, request, context):
        threading.Thread(target=self.watch, daemon=True).start()
        return pb.StartResponse()

    def watch(self):
        """Each stream begins with a snapshot and ends with the agent; the next agent has the next one."""
        while True:
            try:
                watch = host.WatchRequest(type="greeter")
                for told in self.registry.Watch(watch, metadata=self.metadata, wait_for_ready=True):
                    self.heard.append(in_words(told))
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    self.heard.append(f"error: {error.code().name}: {error.details()}")
                    return
            time.sleep(0.1)

    def GetStatus(self, request, context):
        if not request.HasField("data"):
            return pb.Status()
        verb, _, name = request.data.partition(" ")
        try:
            if verb == "heard":
                return pb.Status(results=self.heard)
            if verb == "plain":
                return pb.Status(results=[self.plain()])
            if verb == "greet":
                wait = host.WaitRequest(type="greeter", name=name, timeout_ms=3000)
                self.registry.Wait(wait, metadata=self.metadata, timeout=4)
            dispense = host.DispenseRequest(type="greeter", name=name)
            found = self.registry.Dispense(dispense, metadata=self.metadata, timeout=4)
            return pb.Status(results=[greeting(found.target)])
        except grpc.RpcError as error:
            return pb.Status(code=1, results=[f"{error.code().name}: {error.details()}"])

    def plain(self):
        channel, metadata = scaffold.host(options=())
        try:
            host_grpc.RegistryStub(channel).List(host.ListRequest(), metadata=metadata, timeout=4)
            return "OK"
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        finally:
            channel.close()

    def Stop(self, request, context):
        self.stopped.set()
        return pb.StopResponse()


def greeting(target):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(3)
        stream.connect(target.removeprefix("unix:"))
        with stream.makefile() as file:
            return file.read()


def in_words(told):
    if told.WhichOneof("told") == "snapshot":
        return f"snapshot of {len(told.snapshot.entries)}"
    change, offer = told.change, told.change.entry.offer
    if change.kind != host.Change.DEREGISTERED:
        kind = "registered" if change.kind == host.Change.REGISTERED else "updated"
        return f"{kind} {offer.name} {offer.version}"
    ended = change.reason == host.Change.PLUGIN_ENDED
    return f"{'ended' if ended else 'withdrawn'} {offer.name}"


scaffold.serve(Consumer())
