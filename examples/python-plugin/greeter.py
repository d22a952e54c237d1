#!/usr/bin/env python3
"""A whole plugin in Python: it answers requests with a greeting, counts them, and remembers the count.

guest-agent is the client, the plugin is the server of four calls. What it is started with and what each call
means is in docs/writing-plugins.md.
"""

import json
import os
import pathlib
import signal
import sys
import threading
from concurrent import futures

# What `build` put beside this file: the modules of the protocol, and what they need.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))

import grpc
import plugin_comm_pb2 as pb
import plugin_comm_pb2_grpc as pb_grpc


class Greeter(pb_grpc.GuestAgentPluginServicer):
    """The plugin. Calls come from several threads at once, so what changes is behind the lock."""

    def __init__(self):
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self.greeting = "hello"
        self.counted = None  # the file with the count, in the plugin's own directory
        self.count = 0

    def Start(self, request, context):
        """Comes once, when the socket answers. Return when the work has begun, not when it is done."""
        with self.lock:
            self.take(request.string_config, context)
            # This directory is the plugin's alone and survives restarts and upgrades.
            self.counted = pathlib.Path(request.config.state_directory_path) / "count"
            try:
                self.count = int(self.counted.read_text())
            except (FileNotFoundError, ValueError):
                self.count = 0  # new, or damaged
            print(f"started; {self.count} greetings so far")  # `guest-agent logs NAME` shows it
        return pb.StartResponse()

    def Apply(self, request, context):
        """Brings another configuration. UNIMPLEMENTED asks to be restarted with it; any other error refuses
        it, and the agent reports that the old one is still in use."""
        if is_vm_event(request.string_config):
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "not interested in the machine")
        with self.lock:
            self.take(request.string_config, context)
        return pb.ApplyResponse()

    def GetStatus(self, request, context):
        """A health check without data, and a question with data. Answer both quickly: a plugin that does not
        is taken for hung after a few times."""
        with self.lock:
            if not request.HasField("data"):
                return pb.Status(results=[f"{self.count} greetings so far"])
            self.count += 1
            try:
                self.counted.write_text(str(self.count))
            except OSError as error:
                # Not zero: unhealthy, but alive.
                return pb.Status(code=1, results=[f"cannot write my count: {error}"])
            return pb.Status(results=[f"{self.greeting}, {request.data}"])

    def Stop(self, request, context):
        """Comes before a restart, an upgrade, and with cleanup before the plugin is removed for good: then wipe
        what is outside of the state directory, which the agent deletes itself."""
        print(f"stopping; cleanup: {str(request.cleanup).lower()}")
        self.stopped.set()
        return pb.StopResponse()

    def take(self, config, context):
        """Uses a configuration. No configuration is an empty text. The lock is held."""
        if "\n" in config:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a greeting is one line")
        self.greeting = config or "hello"


def is_vm_event(config):
    """Tells news about the machine from a configuration: both come through Apply."""
    try:
        news = json.loads(config)
    except ValueError:
        return False
    return isinstance(news, dict) and news.get("Command") == "VmEvent"


def endpoints(arguments):
    """The address that the agent named: its arguments come after the plugin's own."""
    named = dict(argument[2:].split("=", 1) for argument in arguments if argument.startswith("--") and "=" in argument)
    protocol, address = named.get("protocol"), named.get("address", "")
    if protocol not in ("unix", "tcp"):
        sys.exit("no --protocol=unix or --protocol=tcp; guest-agent starts this program")
    if protocol == "unix":
        return ["unix:" + address]
    host, _, port = address.rpartition(":")
    if host in ("", "[::]", "0.0.0.0"):
        # Google's guest agent passes "[::]:PORT" to every plugin. Other machines must not call it.
        return ["[::1]:" + port, "127.0.0.1:" + port]
    return [address]


def main():
    sys.stdout.reconfigure(line_buffering=True)  # what is printed is in the log at once
    os.umask(0o077)  # no other user may open the socket
    plugin = Greeter()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    pb_grpc.add_GuestAgentPluginServicer_to_server(plugin, server)
    for endpoint in endpoints(sys.argv[1:]):
        try:
            server.add_insecure_port(endpoint)
        except RuntimeError:
            if endpoint.startswith("[::1]"):
                continue  # a machine without IPv6 has the other address
            raise
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: plugin.stopped.set())
    server.start()
    plugin.stopped.wait()
    server.stop(grace=1).wait()  # answers what it was asked before it goes


if __name__ == "__main__":
    main()
