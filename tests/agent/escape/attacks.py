"""What a confined plugin of root tries, one line for each attack: its name and what came of it.

Arguments: the command socket, the root of control groups of version 2 (or nothing), the pid of the
agent, and the socket of another plugin.
"""

import ctypes
import os
import platform
import resource
import socket
import struct
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
# Numbers of system calls: exit and keyctl have other ones on other processors.
EXIT, KEYCTL = {"x86_64": (60, 250)}.get(platform.machine(), (93, 219))
CLONE3 = 435
CLONE_INTO_CGROUP = 0x2_0000_0000
PTRACE_SEIZE = 0x4206
KEYCTL_GET_KEYRING_ID = 0
USER_KEYRING = -4


def say(attack, result):
    print(f"{attack}: {result}", flush=True)


def call_the_agent(path):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(10)
        stream.connect(path)
        stream.sendall(b'{"Command":"nothing that there is"}')
        stream.shutdown(socket.SHUT_WR)
        reply = b""
        while piece := stream.recv(4096):
            reply += piece
        return reply.decode(errors="replace").strip() or "closed"


def attempt(attack, action):
    try:
        say(attack, action() or "allowed")
    except OSError as error:
        say(attack, f"kept ({error.strerror})")


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def without_main_thread(attack, path):
    """Calls from a thread of a process whose main thread has ended."""

    def call():
        while ") Z" not in open(f"/proc/{os.getpid()}/stat").read():
            time.sleep(0.01)
        attempt(attack, lambda: call_the_agent(path))
        os._exit(0)

    if (child := os.fork()) == 0:
        threading.Thread(target=call).start()
        LIBC.syscall(EXIT, 0)
    os.waitpid(child, 0)


def in_another_group(groups):
    """Goes on in a child in the root of control groups. Says whether this is the child."""
    folder = os.open(groups, os.O_PATH | os.O_DIRECTORY)
    signal_of_end = 17
    words = struct.pack("11Q", CLONE_INTO_CGROUP, 0, 0, 0, signal_of_end, 0, 0, 0, 0, 0, folder)
    words = ctypes.create_string_buffer(words, len(words))
    child = check(LIBC.syscall(CLONE3, words, len(words)))
    if child:
        os.waitpid(child, 0)
    return child == 0


def leave_the_group(path, groups):
    if in_another_group(groups):
        attempt("in another group", lambda: call_the_agent(path))
        without_main_thread("in another group, without main thread", path)
        os._exit(0)


def main(path, groups, agent, other):
    agent = int(agent)
    attempt("as it is", lambda: call_the_agent(path))
    without_main_thread("without main thread", path)
    if groups:
        attempt("leave the group", lambda: leave_the_group(path, groups))
    attempt("limits", lambda: resource.prlimit(agent, resource.RLIMIT_CORE, (0, 0)) and None)
    attempt("trace", lambda: check(LIBC.ptrace(PTRACE_SEIZE, agent, None, None)) and None)
    keyring = lambda: LIBC.syscall(KEYCTL, KEYCTL_GET_KEYRING_ID, USER_KEYRING, 1)
    attempt("keys", lambda: check(keyring()) and None)
    nice = os.getpriority(os.PRIO_PROCESS, agent)
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, agent, nice))
    attempt("another plugin", lambda: socket.socket(socket.AF_UNIX).connect(other))


main(*sys.argv[1:])
