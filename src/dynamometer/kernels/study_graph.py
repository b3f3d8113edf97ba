"""The routing of a mixture of experts in; which compilers and exporters take it out, with the root cause of each no.

Five ways to write top-k routing, from one product over all experts to a loop over the tokens of each, go through
torch.export, torch.compile, ONNX, OpenVINO and TensorRT as far as each is installed. A way counts as taken when the
result has been built and run, at the traced number of tokens and at another, and its answer is right: nothing is
looked up in a list.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import msgspec
import torch
from torch import nn

from dynamometer.kernels.backends import Backend
from dynamometer.kernels.found import Found, Row, exactly
from dynamometer.kernels.machine import describe
from dynamometer.kernels.timing import Now
from dynamometer.plugins import available

QUESTION = "Can a router's top-k and gather be exported and compiled, and where not, why?"
_Take = Callable[[nn.Module, torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    experts: int = 8
    top_k: int = 2
    hidden: int = 64
    width: int = 96
    tokens: int = 12
    other_tokens: int = 7
    only: tuple[str, ...] = ()


QUICK: Mapping[str, int] = {"experts": 4, "hidden": 16, "width": 24}


class Router(nn.Module):
    """Weights that every way of routing shares."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.top_k, self.experts = options.top_k, options.experts
        self.gate = nn.Parameter(torch.randn(options.experts, options.hidden))
        self.weight = nn.Parameter(torch.randn(options.experts, options.width, options.hidden) * options.hidden**-0.5)

    def chosen(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.softmax(x @ self.gate.t(), dim=-1)
        found = torch.topk(scores, self.top_k, dim=-1)
        return found.values, found.indices


class TopKOnly(Router):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, indices = self.chosen(x)
        return torch.cat((values, indices.to(x.dtype)), dim=-1)


class AllExperts(Router):
    """Every expert on every token, and most of it multiplied by 0: static, and experts / top-k times the work."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, indices = self.chosen(x)
        share = torch.zeros(x.shape[0], self.experts, dtype=x.dtype).scatter(1, indices, values)
        return torch.einsum("te,teo->to", share, torch.einsum("th,eoh->teo", x, self.weight))


class GatheredWeights(Router):
    """The chosen experts' weights, gathered for each token: static, and a copy of top-k experts a token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, indices = self.chosen(x)
        out = torch.einsum("tkoh,th->tko", self.weight[indices], x)
        return (out * values[..., None]).sum(1)


class LoopedExperts(Router):
    """A loop over experts, each on the tokens that chose it: shapes that depend on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, indices = self.chosen(x)
        out = torch.zeros(x.shape[0], self.weight.shape[1], dtype=x.dtype)
        for expert in range(self.experts):
            token, place = torch.where(indices == expert)
            part = (x[token] @ self.weight[expert].t()) * values[token, place][:, None]
            out = out.index_add(0, token, part)
        return out


class SortedTokens(Router):
    """Tokens sorted by expert and split by counts read on the host: a grouped product without a kernel for it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, indices = self.chosen(x)
        order = torch.argsort(indices.reshape(-1), stable=True)
        token = order // self.top_k
        counts = torch.bincount(indices.reshape(-1), minlength=self.experts).tolist()
        pieces = x[token].split(counts)
        rows = torch.cat([piece @ self.weight[e].t() for e, piece in enumerate(pieces)])
        rows = rows * values.reshape(-1)[order][:, None]
        return torch.zeros(x.shape[0], self.weight.shape[1], dtype=x.dtype).index_add(0, token, rows)


WAYS: dict[str, type[Router]] = {
    "top-k alone": TopKOnly,
    "all experts, weighted": AllExperts,
    "gathered weights": GatheredWeights,
    "loop over experts": LoopedExperts,
    "sorted and split": SortedTokens,
}


def _export(module: nn.Module, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.export.export(
        module, (x,), dynamic_shapes=({0: torch.export.Dim("tokens", min=2, max=4096)},)
    ).module()


def _compile(module: nn.Module, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    torch.compiler.reset()
    return torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")


def _onnx(module: nn.Module, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Exported, checked, and run by onnx's own reference."""
    onnx, runner = import_module("onnx"), import_module("onnx.reference")

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        shapes = {"x": {0: torch.export.Dim("tokens", min=2, max=4096)}}
        torch.onnx.export(module, (x,), path, dynamo=True, dynamic_shapes=shapes, input_names=["x"], verbose=False)
        model = onnx.load(path)
    onnx.checker.check_model(model)
    ready = runner.ReferenceEvaluator(model)
    return lambda given: torch.from_numpy(ready.run(None, {"x": given.detach().numpy()})[0])


def _openvino(module: nn.Module, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    openvino = import_module("openvino")
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("tokens", min=2, max=4096)},))
    exact = {"INFERENCE_PRECISION_HINT": "f32"}  # by default it rounds to bf16 where the processor can
    ready = openvino.Core().compile_model(openvino.convert_model(exported), "CPU", exact)
    return lambda given: torch.from_numpy(ready(given.detach().numpy())[0].copy())


def _tensorrt(module: nn.Module, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    torch_tensorrt = import_module("torch_tensorrt")
    return torch_tensorrt.compile(module.cuda(), ir="dynamo", inputs=[x.cuda()])


TAKERS: dict[str, tuple[str, _Take]] = {  # name -> (package, how)
    "torch.export": ("torch", _export),
    "torch.compile": ("torch", _compile),
    "ONNX": ("onnxscript", _onnx),
    "OpenVINO": ("openvino", _openvino),
    "TensorRT": ("torch_tensorrt", _tensorrt),
}


def run(options: Options, backend: Backend, now_ns: Now, say: Callable[[str], None]) -> Found:
    """Every way through every compiler that is here."""
    rows = []
    for taker, (package, take) in TAKERS.items():
        if options.only and taker not in options.only:
            continue
        for way, kind in WAYS.items():
            at = {"compiler": taker, "routing": way}
            if not available(package):
                rows.append(Row(at, refused=f"{package} is not installed"))
                break
            say(f"{taker}: {way}")
            rows.append(_row(at, kind, take, options))
    notes = (
        f"{options.experts} experts, top {options.top_k}; built with {options.tokens} tokens.",
        f"error: the larger of a run with these and one with {options.other_tokens}, against the module itself.",
        *(f"{way} is made of {operators(kind(options), options)}" for way, kind in WAYS.items()),
    )
    return Found("graph-support", QUESTION, _verdict(rows), tuple(rows), describe(backend), notes)


def operators(module: nn.Module, options: Options) -> str:
    """The operators that torch.export sees in it, or that it cannot be seen."""
    x = torch.randn(options.tokens, options.hidden)
    try:
        graph = torch.export.export(module.eval(), (x,)).graph
    except Exception as wrong:  # the same refusal stands in the table
        return f"operators that cannot be listed ({type(wrong).__name__})"
    names = (
        str(node.target).removeprefix("aten.").partition(".")[0] for node in graph.nodes if node.op == "call_function"
    )
    return ", ".join(dict.fromkeys(name for name in names if not name.startswith(("sym", "_assert", "<"))))


def _row(at: Mapping[str, str], kind: type[Router], take: _Take, options: Options) -> Row:
    torch.manual_seed(0)
    module = kind(options).eval()
    first, other = torch.randn(options.tokens, options.hidden), torch.randn(options.other_tokens, options.hidden)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            built = take(module, first)
        except Exception as wrong:  # compilers raise their own kinds, and each is a finding
            return Row(at, refused=f"does not build: {root_cause(wrong)}")
        try:
            wrongs = [_error(built(x), module(x)) for x in (first, other)]
        except Exception as wrong:
            return Row(at, refused=f"builds and does not run: {root_cause(wrong)}")
    if max(wrongs) > 1e-3:
        return Row(at, refused=f"builds, runs and is wrong by {max(wrongs):.2g}")
    return Row(at, {"error": exactly(max(wrongs), "", "against the module itself")})


def _error(found: torch.Tensor, right: torch.Tensor) -> float:
    if found.shape != right.shape:
        return float("inf")
    return float((found.double() - right.double()).norm() / right.double().norm())


_TELLING = r"Conversion is failed for|data.dependent|[Uu]nsupported|[Nn]ot supported|[Cc]ould not"


def root_cause(wrong: BaseException) -> str:
    """The innermost cause in one line, without paths and without colour."""
    while wrong.__cause__ is not None:
        wrong = wrong.__cause__
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in str(wrong).splitlines()]
    telling = [line for line in lines if re.search(_TELLING, line)]
    line = (telling or [line for line in lines if line] or [type(wrong).__name__])[0]
    line = re.sub(r"(?:/[\w.\-]+){2,}", "…", line)
    return f"{type(wrong).__name__}: {line[:150]}"


def _verdict(rows: list[Row]) -> tuple[str, ...]:
    said = []
    for way in WAYS:
        mine = [r for r in rows if r.at["routing"] == way and "not installed" not in r.refused]
        taken = [str(r.at["compiler"]) for r in mine if r.figures]
        failed = [str(r.at["compiler"]) for r in mine if not r.figures]
        if mine:
            said.append(
                f"{way}: taken by {', '.join(taken) or 'none'}" + (f"; not by {', '.join(failed)}." if failed else ".")
            )
    return tuple(said)
