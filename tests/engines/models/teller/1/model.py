"""Writes its text to the log at every level, and counts in metrics of its own."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.families = {
            kind: pb_utils.MetricFamily(name=f"teller_{kind}", description=f"A {kind} of the teller", kind=number)
            for kind, number in (("counter", pb_utils.MetricFamily.COUNTER), ("gauge", pb_utils.MetricFamily.GAUGE))
        }
        self.counter = self.families["counter"].Metric(labels={"model": "teller", "of": "texts"})
        self.gauge = self.families["gauge"].Metric(labels={})
        pb_utils.Logger.log_info("the teller is here")

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "text_input")
        text = tensor.as_numpy()[0].decode()
        logger = pb_utils.Logger
        logger.log_info(f"info: {text}")
        logger.log_warn(f"warn: {text}")
        logger.log_error(f"error: {text}")
        logger.log_verbose(f"verbose: {text}")
        logger.log(f"plain: {text}")
        logger.log(f"as a warning: {text}", logger.WARNING)
        print(f"printed: {text}", flush=True)
        self.counter.increment(2)
        self.gauge.set(len(text))
        self.gauge.increment(0.5)
        assert self.gauge.value() == len(text) + 0.5
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", tensor.as_numpy())])

    def finalize(self):
        pb_utils.Logger.log_info("the teller is gone")
