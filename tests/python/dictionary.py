"""Both ends of RFC 9842 by another implementation of zstd.

client URL FILE   fetches URL as one who has FILE; prints the SHA-256 of what comes out
server OLD NEW    serves /artifacts/echo/old and /artifacts/echo/new; prints its address and then how
                  each answer was coded
"""

import base64
import hashlib
import http.server
import sys
import urllib.request

import zstandard

MAGIC = b"\x5e\x2a\x4d\x18\x20\x00\x00\x00"


def read(path):
    with open(path, "rb") as file:
        return file.read()


def raw(content):
    return zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def name(content):
    return ":" + base64.b64encode(hashlib.sha256(content).digest()).decode() + ":"


def client(url, path):
    old = read(path)
    headers = {"Accept-Encoding": "dcz", "Available-Dictionary": name(old)}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        assert answer.headers["Content-Encoding"] == "dcz", answer.headers
        body = answer.read()
    assert body[:8] == MAGIC, body[:8]
    assert body[8:40] == hashlib.sha256(old).digest()
    decoder = zstandard.ZstdDecompressor(dict_data=raw(old), max_window_size=1 << 27)
    print(hashlib.sha256(decoder.decompress(body[40:])).hexdigest())


def server(old_path, new_path):
    old, new = read(old_path), read(new_path)
    encoder = zstandard.ZstdCompressor(level=19, dict_data=raw(old), write_checksum=True)
    delta = MAGIC + hashlib.sha256(old).digest() + encoder.compress(new)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body, coding = (old if self.path.endswith("/old") else new), "identity"
            accepted = self.headers.get("Accept-Encoding", "")
            if body is new and "dcz" in accepted:
                if self.headers.get("Available-Dictionary") == name(old):
                    body, coding = delta, "dcz"
            self.send_response(200)
            if coding != "identity":
                self.send_header("Content-Encoding", coding)
            self.send_header("Use-As-Dictionary", 'match="/artifacts/echo/*"')
            self.send_header("Vary", "accept-encoding, available-dictionary")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            print(coding, len(body), flush=True)
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print("http://127.0.0.1:%d" % serving.server_address[1], flush=True)
    serving.serve_forever()


{"client": client, "server": server}[sys.argv[1]](*sys.argv[2:])
