"""A control plane in Python: accepts every registration and says nothing else.

It is grpcio's own server, whose HTTP/2 enforces what gRFC A8 says about pings. Arguments: the shortest time
between two pings that the server permits, in milliseconds. It prints its port, then a line for each registration.
"""

import sys
from concurrent import futures

import grpc
import scaffold

pb, pb_grpc = scaffold.modules("agent_communication_pb2", "agent_communication_pb2_grpc")


class ControlPlane(pb_grpc.AgentCommunicationServicer):
    def StreamAgentMessages(self, requests, context):
        first = next(requests)
        print("registered", flush=True)
        answer = pb.MessageResponse()
        yield pb.StreamAgentMessagesResponse(message_id=first.message_id, message_response=answer)
        for _ in requests:
            pass


def main():
    options = [("grpc.http2.min_ping_interval_without_data_ms", int(sys.argv[1]))]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8), options=options)
    pb_grpc.add_AgentCommunicationServicer_to_server(ControlPlane(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
