"""What the messages between the host and an instance are about: the first element of each.

The second element of each is a tuple: offsets of blocks that the sender of the message does not use any more. What
follows is written down here, in order. A tensor is (name, datatype, shape, data), where data is

    bytes                   the data itself
    (offset, size)          a block of the sender's arena
    (key, offset, size)     a piece of a client's shared memory
"""

from __future__ import annotations

# From the host.
LOAD = 1  # fields of the model, by name
START = 2  # name of the instance, kind, device
EXECUTE = 3  # batch, requests
CANCEL = 4  # request
ANSWER = 5  # inference of the model's own, outputs or None, parameters, error, whether it is the last
RESULT = 6  # control, value, error
FORGET = 7  # key of an implicit state
STOP = 8
# From an instance.
LOADED = 11  # configuration, serialised; whether the instances share the process
STARTED = 12  # what runs where, as JSON; "" where the backend does not tell
FAILED = 13  # code, message: neither loaded nor started
DONE = 14  # batch, ns of input, inference and output, bytes of memory, responses
RESPONSE = 15  # request, whether it is the last, outputs or None, parameters, error, ns of input, inference, output
INFER = 16  # number, a request to another model, whether it may answer several times
INFER_CANCEL = 17  # number
CONTROL = 18  # number, name of the operation, arguments
LOG = 19  # level, text, file, line
METRIC = 20  # what happens, arguments
STOPPED = 21
# From both.
FREED = 30
