"""A plugin in Python, written from the .proto files alone: it keeps its configuration and says what it is.

Questions: `config` answers with the configuration, `pid` with the process, `state` with its state directory.
Its own argument names a file that it writes how it was stopped to.
"""

import os
import sys
import threading

import grpc
import scaffold

pb, pb_grpc = scaffold.modules("plugin_comm_pb2", "plugin_comm_pb2_grpc")


class Plugin(pb_grpc.GuestAgentPluginServicer):
    def __init__(self, farewell):
        self.farewell = farewell
        self.stopped = threading.Event()
        self.config = ""
        self.state = ""

    def Start(self, request, context):
        self.config = request.string_config
        self.state = request.config.state_directory_path
        return pb.StartResponse()

    def Apply(self, request, context):
        if request.string_config == "refuse":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "python does not like it")
        self.config = request.string_config
        return pb.ApplyResponse()

    def GetStatus(self, request, context):
        known = {"config": self.config, "pid": str(os.getpid()), "state": self.state}
        results = [known.get(request.data, "unknown question")] if request.HasField("data") else []
        return pb.Status(code=0, results=results)

    def Stop(self, request, context):
        with open(self.farewell, "w", encoding="utf-8") as file:
            file.write("cleanup" if request.cleanup else "keep")
        self.stopped.set()
        return pb.StopResponse()


scaffold.serve(Plugin(sys.argv[1]))
