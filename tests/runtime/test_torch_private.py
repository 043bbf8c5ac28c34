"""Private names of torch stand in one module, and what takes their place where they are missing computes the same."""

import ast
import copy
import importlib.util
import re

import pytest
import torch
from places import SOURCE
from safetensors.torch import load_file
from test_pinned_runs import CONTROL, TEXT

import upslope as up
from upslope.learners.adam import Adam
from upslope.learners.updates import replay as recording
from upslope.learners.updates.replay import Tape
from upslope.runtime import torch_private

PRIVATE_METHODS = {"_init_group", "_version", "_schema", "_overloadname", "_base", "_grad_fn"}
FALLBACKS = {
    "foreach_copy_": torch_private.copy_each_, "foreach_norm": torch_private.norm_each, "foreach_add_": torch_private.add_each_,
    "foreach_mul_": torch_private.multiply_each_, "fused_adamw_": None, "adamw_init_group": None,
    "flash_attention_for_cpu": torch_private.plain_attention,
    "flash_attention_for_cpu_backward": torch_private.plain_attention_backward, "version_of": torch_private.no_version,
}  # fmt: skip
"""What each name is where torch lacks it; a mode to watch operations in has a test of its own."""


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_this_torch_has_them_all():
    assert torch_private.MISSING == [] and not any(getattr(torch_private, name) is other for name, other in FALLBACKS.items())


def chain(node):
    """``["torch", "ops", "aten", "_x"]`` of such an expression; empty if it is another."""
    words = []
    while isinstance(node, ast.Attribute):
        words, node = [node.attr, *words], node.value
    return [node.id, *words] if isinstance(node, ast.Name) else []


def private_names(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and (words := chain(node)):
            own = [word for word in words[1:] if word.startswith("_") and not word.startswith("__")]
            if own and (words[0] in ("torch", "F") or set(own) & PRIVATE_METHODS):
                yield ".".join(words), node.lineno
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.split(".")[0] == "torch" and "._" in name:
                yield name, node.lineno


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_other_file_uses_one(file):
    found = [] if file.name == "torch_private.py" else list(private_names(file.read_text()))
    assert not found, f"{found}: put it into upslope.runtime.torch_private, with a fallback"


def test_the_check_can_fail():
    source = (
        "import torch\nfrom torch.utils._pytree import tree_map\ntorch._foreach_add_([], 1)\nx = y._version\ntorch.ops.aten._z()"
    )
    assert sorted(line for _, line in private_names(source)) == [2, 3, 4, 5]


def test_several_tensors_one_by_one():
    shapes = [(3, 4), (7,), (2, 2, 2), ()]
    for name, more in (("foreach_add_", 0.5), ("foreach_mul_", 1.5)):
        one, other = ([numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)] for _ in range(2))
        getattr(torch_private, name)(one, more)
        FALLBACKS[name](other, more)
        assert all(map(torch.equal, one, other))
    for dtype in (torch.float32, torch.bfloat16):
        one, other = ([torch.zeros(shape, dtype=dtype) for shape in shapes] for _ in range(2))
        sources = [numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)]
        torch_private.foreach_copy_(one, sources)
        torch_private.copy_each_(other, sources)
        assert all(map(torch.equal, one, other)) and one[0].any()
    torch.testing.assert_close(list(torch_private.foreach_norm(sources)), list(torch_private.norm_each(sources)))


@pytest.mark.parametrize("missing", ["fused_adamw_", "adamw_init_group"])
def test_adam_without_its_kernel_takes_the_very_same_steps(missing, monkeypatch):
    parameters = [torch.nn.Parameter(numbers(5, 3)), torch.nn.Parameter(numbers(4, seed=1))]
    others = copy.deepcopy(parameters)
    groups = [[{"params": [first]}, {"params": [second], "lr": 3e-3}] for first, second in (parameters, others)]
    one, other = (Adam(group, lr=1e-2, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1, fused=True) for group in groups)
    for step in range(4):
        for number, (first, second) in enumerate(zip(parameters, others, strict=True)):
            first.grad, second.grad = numbers(*first.shape, seed=10 * step + number), numbers(*first.shape, seed=10 * step + number)
        one.step()
        with monkeypatch.context() as patched:
            patched.setattr(torch_private, missing, None)
            other.step()
    assert all(map(torch.equal, parameters, others))
    for first, second in zip(one.state.values(), other.state.values(), strict=True):
        assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("causal", "masked", "kv_heads"), [(False, False, 4), (True, False, 4), (False, True, 4), (False, True, 2)]
)
def test_attention_without_its_kernel(causal, masked, kv_heads, dtype):
    q, k, v = (numbers(2, heads, 5, 8, seed=seed, dtype=dtype) for seed, heads in enumerate((4, kv_heads, kv_heads)))
    mask = torch.zeros(2, 1, 1, 5, dtype=dtype)
    mask[0, ..., 3:], mask[1] = -torch.inf, -torch.inf  # the second row sees nothing
    given = {"is_causal": causal, "attn_mask": mask if masked else None, "scale": 0.3}
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    out, total = torch_private.flash_attention_for_cpu(q, k, v, **given)
    other = torch_private.plain_attention(q, k, v, **given)
    torch.testing.assert_close(tuple(other), (out, total), **close)
    if kv_heads == 4:
        grad, causal = numbers(2, 4, 5, 8, seed=9, dtype=dtype), given.pop("is_causal")
        arguments = (grad, q, k, v, out, total, 0.0, causal)
        found = torch_private.flash_attention_for_cpu_backward(*arguments, **given)
        torch.testing.assert_close(torch_private.plain_attention_backward(*arguments, **given), tuple(found), **close)


def test_attention_without_its_kernel_is_torchs_own():
    q, k, v = (numbers(2, 3, 6, 8, seed=seed).requires_grad_() for seed in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = numbers(2, 3, 6, 8, seed=7)
    slopes = torch.autograd.grad(expected, (q, k, v), grad)
    q, k, v = (x.detach() for x in (q, k, v))
    out, total = torch_private.plain_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        torch_private.plain_attention_backward(grad, q, k, v, out, total, 0.0, True), slopes, rtol=1e-5, atol=1e-6
    )


def another(module):
    """The same module once more, beside the one that is in use."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_again", module.__file__)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_without_a_mode_to_watch_in_nothing_is_recorded(monkeypatch):
    x = numbers(4)
    with Tape() as tape:
        y = x * 2
    assert tape.program([x], [y]) is not None
    monkeypatch.setattr(torch_private, "DispatchMode", torch_private.NoDispatchMode)
    with another(recording).Tape() as blind:
        y = x * 2
    assert blind.program([x], [y]) is None


def weights_of(run, first=False):
    folder = run.folder.checkpoints()[0] if first else run.folder.latest()
    return {f"{file.stem}.{name}": tensor for file in sorted(folder.glob("*.safetensors")) if file.stem != "learner"
            for name, tensor in load_file(file).items()}  # fmt: skip


def without_any(monkeypatch):
    for name, other in FALLBACKS.items():
        monkeypatch.setattr(torch_private, name, other)
    monkeypatch.setattr(Tape, "program", lambda *_: None)


@pytest.mark.parametrize(
    ("method", "settings"), [pytest.param("grpo", TEXT | {"warm_start": 0.0}, marks=pytest.mark.slow), ("ppo", CONTROL)]
)
def test_a_whole_run_without_any_of_them_ends_near_the_same_weights(method, settings, tmp_path, monkeypatch):
    own = tmp_path / "pays.py"
    own.write_text(
        "def letters(prompts, responses, answers):\n    return [float(sum(map(str.isalpha, text))) for text in responses]\n"
    )
    settings = settings | ({} if method == "ppo" else {"reward": f"{own}:letters"}) | {"keep_checkpoints": 9}
    expected = weights_of(up.train(method, **settings, out=tmp_path / "with"))
    without_any(monkeypatch)
    found = weights_of(up.train(method, **settings, out=tmp_path / "without"))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    moved = weights_of(up.load(tmp_path / "with"), first=True)
    assert any(not torch.equal(moved[name], expected[name]) for name in moved)


def test_names_that_are_gone_are_noted_and_replaced(monkeypatch):
    with monkeypatch.context() as patched:
        for name in ("_foreach_copy_", "_foreach_norm", "_fused_adamw_", "_scaled_dot_product_flash_attention_for_cpu"):
            patched.delattr(torch, name)
        patched.setattr(torch.optim.AdamW, "_init_group", lambda self, group, something_else: None)
        bare = another(torch_private)
    assert set(bare.MISSING) == {"_foreach_copy_", "_foreach_norm", "_fused_adamw_", "optim.AdamW._init_group",
                                 "_scaled_dot_product_flash_attention_for_cpu"}  # fmt: skip
    assert bare.foreach_copy_ is bare.copy_each_ and bare.foreach_norm is bare.norm_each
    assert bare.fused_adamw_ is bare.adamw_init_group is None and bare.flash_attention_for_cpu is bare.plain_attention


def test_the_installer_keeps_to_the_bound_on_torch():
    root = SOURCE.parent.parent
    (bound,) = re.findall(r'"torch(?:>=[\d.]+,)(<[\d.]+)"', (root / "pyproject.toml").read_text())
    assert f"torch{bound}" in (root / "constraints.txt").read_text().splitlines()
