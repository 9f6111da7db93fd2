# SPDX-License-Identifier: BSD-3-Clause
# The server of fork_server.py, run from its text. The parent stays in the loop of `serve`. A child
# returns from `serve`, and the last line runs the child's code as the main module's.
import gc
import importlib
import os
import signal
import socket
import struct
import sys
import warnings

import torch


def serve(connection: socket.socket) -> tuple[bytes, list[int]]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the tests' process and the child take SIGINT
    while True:
        header, files, _, _ = socket.recv_fds(connection, 8, 2)
        if not header:
            os._exit(0)
        request = connection.recv(struct.unpack("=q", header)[0], socket.MSG_WAITALL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's idle threads do not exist in the child
            child = os.fork()
        if child == 0:
            return request, files
        for file in files:
            os.close(file)
        connection.sendall(struct.pack("=q", child))
        _, status, usage = os.wait4(child, 0)
        connection.sendall(struct.pack("=qq", status, int((usage.ru_utime + usage.ru_stime) * 1e6)))


def become(request: bytes, files: list[int]) -> str:
    import json

    code: str
    code, arguments, environment = json.loads(request)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, file in enumerate(files, start=1):
        os.dup2(file, target)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["-c", *arguments]
    return code


def main() -> str:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for entry in sys.argv[3:]:
        module, _, function = entry.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    torch.default_generator.manual_seed(int(sys.argv[2]))
    # Torch's half a million objects are not garbage: a child that examined them on exit spent 0.4
    # s, and 1 s after importing the compiler.
    gc.collect()
    gc.freeze()
    request, files = serve(connection)
    connection.close()
    return become(request, files)


code = main()
if torch._is_device_backend_autoload_enabled():
    torch._import_device_backends()  # type: ignore[no-untyped-call]
for name in (
    "gc",
    "importlib",
    "os",
    "signal",
    "socket",
    "struct",
    "sys",
    "torch",
    "warnings",
    "serve",
    "become",
    "main",
):
    del globals()[name]
del name
exec(compile(globals().pop("code"), "<string>", "exec"))
