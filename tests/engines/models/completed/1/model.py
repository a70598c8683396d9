"""Has no config.pbtxt: the model itself completes its inputs and outputs."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.set_max_batch_size(4)
        auto_complete_model_config.set_dynamic_batching()
        auto_complete_model_config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
        auto_complete_model_config.add_input({"name": "y", "data_type": "TYPE_FP32", "dims": [-1], "optional": True})
        auto_complete_model_config.add_output({"name": "doubled", "data_type": "TYPE_FP32", "dims": [-1]})
        return auto_complete_model_config

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("doubled", array * 2)]) for array in arrays]
