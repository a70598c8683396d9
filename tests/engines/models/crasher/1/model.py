"""Ends its process, hangs, or leaks memory, as `how` selects; "live" returns the process id."""

import ctypes
import os
import signal
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.eaten = []

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        how = pb_utils.get_input_tensor_by_name(request, "how").as_numpy()[0].decode()
        if how == "exit":
            os._exit(7)
        elif how == "segfault":
            ctypes.string_at(0)
        elif how == "abort":
            os.abort()
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "crash in a thread":
            threading.Thread(target=ctypes.string_at, args=(0,)).start()
            time.sleep(5)
        elif how == "leak":
            self.eaten.append(bytearray(os.urandom(1024)) * 8192)
        elif how == "hang":
            time.sleep(3600)
        return pb_utils.InferenceResponse([pb_utils.Tensor("pid", np.array([os.getpid()], dtype=np.int64))])
