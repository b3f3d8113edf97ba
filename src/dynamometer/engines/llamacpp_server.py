"""Settings as command-line options in, llama.cpp's own HTTP server on loopback out, for as long as this process
lives.

Run as a program: `python -m dynamometer.engines.llamacpp_server --model FILE --port P --slots N --context C --threads
T`. `context` is tokens per slot; llama.cpp divides its whole context by the slots.
"""

from __future__ import annotations

import argparse
import signal
import sys


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llamacpp_server")
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=2048, help="tokens per slot")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--poll", type=int, default=-1, help="0: waiting compute threads sleep; 100: they spin")
    parser.add_argument("--cache-prompt", type=int, choices=(0, 1), default=1)
    # llama.cpp's default of 8 GiB for old prompts looks like a leak in a long run, and hides the price of a prefill
    parser.add_argument("--cache-ram-mib", type=int, default=0)
    parser.add_argument("--cache-type", default="", help="of keys and values: F16, Q8_0, Q4_0")
    parser.add_argument("--gpu-layers", type=int, default=-1)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    chosen = options(arguments)
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = chosen.model
    if chosen.alias:
        parameters.model_alias = {chosen.alias}
    parameters.hostnames = [chosen.host]
    parameters.port = chosen.port
    parameters.n_parallel = chosen.slots
    parameters.n_ctx = chosen.context * chosen.slots
    for threads in (parameters.cpuparams, parameters.cpuparams_batch):
        threads.n_threads = chosen.threads
        if chosen.poll >= 0:
            threads.poll = chosen.poll
    parameters.cache_prompt = bool(chosen.cache_prompt)
    parameters.cache_ram_mib = chosen.cache_ram_mib
    if chosen.cache_type:
        kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{chosen.cache_type.upper()}")
        parameters.cache_type_k = parameters.cache_type_v = kind
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    if chosen.gpu_layers >= 0:
        parameters.n_gpu_layers = chosen.gpu_layers
    try:
        server = xllamacpp.Server(parameters)  # returns once the model is loaded
    except RuntimeError as wrong:  # its own lines above say why
        print(f"llama.cpp: {wrong}", file=sys.stderr)
        return 1
    print(f"listening on {server.listening_address}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
