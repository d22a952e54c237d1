"""An admission plugin in Python: admits the packages it is given as arguments, and denies all others.

It uses grpcio and the .proto files, and nothing of the agent's: a second reading of the protocol.
"""

import json
import queue
import sys
import threading

import grpc
import scaffold

pb, pb_grpc, cipd, status_pb = scaffold.modules(
    "cipd_plugin_pb2", "cipd_plugin_pb2_grpc", "cipd_pb2", "google.rpc.status_pb2"
)


def main():
    allowed = sys.argv[2:]
    handshake = json.loads(sys.stdin.readline())
    metadata = [("x-plugin-ticket", handshake["ticket"])]
    channel = grpc.insecure_channel(f"127.0.0.1:{handshake['port']}")
    admissions = pb_grpc.AdmissionsStub(channel)
    host = pb_grpc.HostStub(channel)

    def log(severity, message):
        host.Log(pb.LogRequest(severity=severity, message=message), metadata=metadata)

    def pages(admission):
        token = ""
        while True:
            answer = host.ListMetadata(
                pb.ListMetadataRequest(
                    service_url=admission.service_url,
                    package=admission.package,
                    instance=admission.instance,
                    page_size=1,
                    page_token=token,
                ),
                metadata=metadata,
            )
            yield from answer.metadata
            token = answer.next_page_token
            if not token:
                return

    def code_of(call):
        try:
            call()
            return "OK"
        except grpc.RpcError as error:
            return error.code().name

    stream = admissions.ListAdmissions(
        pb.ListAdmissionsRequest(protocol_version=1, plugin_version="python 1.0"),
        metadata=metadata,
    )
    ended = queue.Queue()

    def read():
        first = True
        try:
            for admission in stream:
                if first:
                    first = False
                    log("info", "no ticket: " + code_of(lambda: host.Log(pb.LogRequest())))
                    second = pb.ListAdmissionsRequest(protocol_version=1)
                    again = lambda: next(admissions.ListAdmissions(second, metadata=metadata))
                    log("info", "second list: " + code_of(again))
                assert admission.instance.hash_algo == cipd.SHA256, admission
                known = {entry.key: entry.value.decode() for entry in pages(admission)}
                log("warning", f"{admission.package} revision {known['revision']}")
                if admission.package in allowed[1:]:
                    verdict = None
                elif admission.package in allowed:
                    verdict = status_pb.Status(code=0)
                else:
                    verdict = status_pb.Status(code=7, message="python does not know it")
                admissions.ResolveAdmission(
                    pb.ResolveAdmissionRequest(
                        admission_id=admission.admission_id, status=verdict
                    ),
                    metadata=metadata,
                )
            ended.put("the stream ended without a code")
        except grpc.RpcError as error:
            ended.put(error.code().name)
        except Exception as error:  # noqa: BLE001 - whatever it is, the tests want to see it
            print(f"failed: {error!r}", flush=True)
            ended.put("failed")

    threading.Thread(target=read, daemon=True).start()
    # The end of the input asks to go.
    sys.stdin.read()
    try:
        code = ended.get(timeout=3)
    except queue.Empty:
        code = "nothing"
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(code)


main()
