"""The library: each answer is the command's JSON, a model is what it is named by, errors are typed, importing is cheap.

The commands are the reference here; the numbers themselves are checked by the golden tests.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actplan
from actplan.cli.main import run as command
from actplan.report import Report, Sweep

TESTS = Path(__file__).parent
CONFIG = TESTS / "reference" / "configs" / "llama-3-8b.json"
LEDGER = str(TESTS / "reference" / "ledger_llama_3_2_1b.yaml")
PAGE = TESTS.parent / "docs" / "library.md"
Printed = Callable[..., Any]


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Printed:
    """The JSON of a command."""

    def of(text: str, *more: str) -> Any:
        assert command([*text.split(), *more, "--format", "json"]) in (0, 1)
        return json.loads(capfd.readouterr().out)

    return of


def built(report: Report | Sweep) -> Any:
    return json.loads(actplan.to_json(report))


def policy(text: str) -> Any:
    return actplan.parse_policy(text)


def test_an_estimate_is_the_commands(printed: Printed) -> None:
    model = actplan.load_model("qwen-27b")
    report = actplan.estimate(model, actplan.Run(sequence_length=8192))
    assert built(report) == printed("estimate --seq 8192")
    assert actplan.estimate(model).estimates == report.estimates


def test_its_json_is_what_the_command_prints_to_the_byte(capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["estimate", "--preset", "gpt2", "--recipe", "bf16", "--gpu", "t4", "--format", "json"]) == 0
    report = actplan.budget(actplan.load_model("gpt2"), setup=actplan.Setup(recipe="bf16", gpu="t4"))
    assert capfd.readouterr().out == actplan.to_json(report).decode() + "\n"


@pytest.mark.parametrize(
    ("options", "run"),
    [
        (
            "--dtype fp16 --kernels liger --loss fused --batch 2",
            actplan.Run(dtype=actplan.parse_dtype("fp16"), kernels="liger", loss="fused", micro_batch_size=2),
        ),
        (
            "--attention eager --checkpoint every:4 --device cuda",
            actplan.Run(attention="eager", checkpoint=policy("every:4"), device="cuda"),
        ),
        (
            "--tp 2 --sp --cp 2 --checkpoint selective:attention",
            actplan.Run(mesh=actplan.Mesh(tp=2, sp=True, cp=2), checkpoint=policy("selective:attention")),
        ),
        (
            "--lora-rank 8 --freeze-layers 2 --precision autocast",
            actplan.Run(adapters=actplan.Lora(rank=8), frozen=actplan.Frozen(first_layers=2), precision="autocast"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_setting_is_the_option_of_its_name(printed: Printed, options: str, run: actplan.Run) -> None:
    assert built(actplan.estimate(actplan.load_model("llama-3-8b"), run)) == printed(
        f"estimate --preset llama-3-8b {options}"
    )


@pytest.mark.parametrize(
    ("name", "options", "run", "setup"),
    [
        (
            "llama-3-8b",
            "--recipe fsdp --dp 8 --gpu h100-80gb",
            actplan.Run(mesh=actplan.Mesh(dp=8)),
            actplan.Setup(recipe="fsdp", gpu="h100-80gb"),
        ),
        (
            "llama-3-8b",
            "--recipe megatron-bf16-dist --dp 2 --pp 4 --microbatches 8 --pp-schedule gpipe --pp-split first=8 "
            "--strict --limit 80GB --fit-on allocated --allocator expandable",
            actplan.Run(mesh=actplan.Mesh(dp=2, pp=4)),
            actplan.Setup(
                recipe="megatron-bf16-dist",
                microbatches=8,
                pp_schedule="gpipe",
                pp_split="first=8",
                limit=80 * 10**9,
                fit_on="allocated",
                strict=True,
                allocator="expandable",
            ),
        ),
        (
            "llama-3-8b",
            "--recipe qlora --checkpoint layer --limit 16GiB",
            actplan.Run(checkpoint=policy("layer")),
            actplan.Setup(recipe="qlora", limit="16GiB"),
        ),
        (
            "gpt2",
            "--recipe fp16 --seq 1024 --tokens chinchilla --gpus 8 --mfu 0.5",
            actplan.Run(sequence_length=1024),
            actplan.Setup(recipe="fp16", tokens="chinchilla", gpus=8, mfu=0.5),
        ),
        (
            "gpt-oss-20b",
            "--recipe zero-3 --dp 8 --offload optimizer --optimizer adamw8bit --seq 4096",
            actplan.Run(sequence_length=4096, mesh=actplan.Mesh(dp=8)),
            actplan.Setup(recipe="zero-3", offload="optimizer", optimizer="adamw8bit"),
        ),
    ],
    ids=["fsdp", "pipeline", "qlora", "priced", "refuses-sdpa"],
)
def test_a_budget_with_its_verdict_is_the_commands(
    printed: Printed, name: str, options: str, run: actplan.Run, setup: actplan.Setup
) -> None:
    report = actplan.budget(actplan.load_model(name), run, setup)
    assert built(report) == printed(f"estimate --preset {name} {options}")


def test_a_budget_without_a_setup_is_in_the_runs_own_type() -> None:
    report = actplan.budget(actplan.load_model("gpt2"), actplan.Run(sequence_length=64))
    assert report.budget.recipe == "bf16"
    assert not report.fit


@pytest.mark.parametrize(
    ("options", "goal"),
    [
        ("--limit 40GiB", {"limit": "40GiB"}),
        ("--limit 60GiB --reserved 10GiB --only hf", {"limit": 60 << 30, "reserved": 10 << 30, "only": "hf"}),
        ("--limit 1GiB", {"limit": 1 << 30}),
        ("--frontier --no-per-op", {"frontier": True, "per_op": False}),
        ("--limit 60GiB --max seq --only hf", {"limit": "60GiB", "largest": "seq", "only": "hf"}),
    ],
)
def test_a_plan_is_the_commands(printed: Printed, options: str, goal: dict[str, Any]) -> None:
    model = actplan.load_model("llama-3.2-1b", overrides=["num_layers=8"])
    report = actplan.plan(model, actplan.Run(), **goal)
    assert built(report) == printed(f"plan --preset llama-3.2-1b --set num_layers=8 {options}")


def test_a_sweep_is_the_commands(printed: Printed) -> None:
    model = actplan.load_model("llama-3-8b")
    axes = {"sequence_length": (4096, 8192), "checkpoint": [policy("none"), policy("layer")]}
    options = "sweep --preset llama-3-8b --seq 4096,8192 --checkpoint none,layer"
    assert built(actplan.sweep(model, axes=axes)) == printed(options)


def test_a_sweep_of_budgets_is_the_commands(printed: Printed) -> None:
    model = actplan.load_model("llama-3-8b")
    axes = {"dp": (1, 3, 8), "recipe": ("fsdp", "zero-3"), "gpu": ("h100-80gb", "a100-40gb")}
    swept = actplan.sweep(model, actplan.Run(sequence_length=4096), axes, actplan.Setup(tokens="1T", gpus=64))
    listed = "--dp 1,3,8 --recipe fsdp,zero-3 --gpu h100-80gb,a100-40gb --tokens 1T --gpus 64"
    assert built(swept) == printed(f"sweep --preset llama-3-8b --seq 4096 {listed}")


def test_a_point_that_does_not_divide_has_a_reason(printed: Printed) -> None:
    model = actplan.load_model("llama-3-8b")
    swept = actplan.sweep(model, actplan.Run(), {"mesh.tp": (1, 3)})
    assert built(swept) == printed("sweep --preset llama-3-8b --tp 1,3")
    assert ["reason" in row for row in swept.rows] == [False, True]
    with pytest.raises(actplan.InputError, match="no point"):
        actplan.sweep(model, actplan.Run(), {"tp": (3, 5)})


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ("--layer 1", {"layer": 1}),
        ("--kind full_attention", {"kind": "full_attention"}),
        ("--at-peak", {"at_peak": True}),
    ],
)
def test_a_ledger_is_the_commands(printed: Printed, options: str, chosen: dict[str, Any]) -> None:
    model = actplan.load_model("qwen-27b", overrides=["num_layers=4"])
    report = actplan.ledger(model, actplan.Run(sequence_length=256), **chosen)
    assert built(report) == printed(f"ledger --seq 256 --set num_layers=4 {options}")


# --- a ledger file in place of a model -------------------------------------------------------------------------


def test_a_traced_model_is_asked_like_any_other(printed: Printed) -> None:
    traced, layers = actplan.load_ledger(LEDGER), actplan.Run(checkpoint=policy("layer"))
    whole = f"--ledger {LEDGER}"
    assert built(actplan.estimate(traced, layers)) == printed(f"estimate {whole} --checkpoint layer")
    assert built(actplan.plan(traced, limit="60GiB")) == printed(f"plan {whole} --limit 60GiB")
    assert built(actplan.ledger(traced)) == printed(f"ledger {whole}")
    spread = actplan.Run(mesh=actplan.Mesh(dp=8))
    found = actplan.budget(traced, spread, actplan.Setup(recipe="fsdp", gpu="h100-80gb"))
    assert built(found) == printed(f"estimate {whole} --recipe fsdp --dp 8 --gpu h100-80gb")
    swept = actplan.sweep(traced, axes={"sequence_length": (4096, 8192)}, setup=actplan.Setup(recipe="bf16"))
    assert built(swept) == printed(f"sweep {whole} --seq 4096,8192 --recipe bf16")


@pytest.mark.parametrize(
    "run",
    [actplan.Run(kernels="liger"), actplan.Run(mesh=actplan.Mesh(tp=2)), actplan.Run(adapters=actplan.Lora())],
    ids=["kernels", "mesh", "adapters"],
)
def test_a_traced_model_refuses_what_the_trace_has_decided(run: actplan.Run) -> None:
    with pytest.raises(actplan.InputError, match="trace"):
        actplan.estimate(actplan.load_ledger(LEDGER), run)


def test_a_traced_model_is_priced_and_divided_between_layers() -> None:
    model = actplan.load_ledger(LEDGER)
    priced = actplan.budget(model, actplan.Run(), actplan.Setup(tokens="1T", gpu="h100-80gb"))
    known = actplan.budget(
        actplan.load_model("llama-3.2-1b"), actplan.Run(), actplan.Setup(tokens="1T", gpu="h100-80gb")
    )
    assert priced.cost.gpu_hours == pytest.approx(known.cost.gpu_hours, rel=1e-3)
    staged = actplan.budget(model, actplan.Run(mesh=actplan.Mesh(pp=2)))
    assert [(stage.first_layer, stage.last_layer) for stage in staged.budget.stages] == [(0, 7), (8, 15)]
    with pytest.raises(actplan.InputError, match="weights' gradients"):
        actplan.budget(model, actplan.Run(mesh=actplan.Mesh(pp=2)), actplan.Setup(pp_schedule="zb-h1"))


# --- models ----------------------------------------------------------------------------------------------------


def test_a_model_is_named_by_a_preset_a_path_or_its_fields() -> None:
    preset = actplan.load_model("llama-3-8b")
    path = actplan.load_model(str(CONFIG))
    fields = actplan.load_model(json.loads(CONFIG.read_text()))
    assert preset.layers == path.layers == fields.layers == actplan.load_model(CONFIG).layers
    assert actplan.load_model(CONFIG, overrides=["num_layers=3"]).num_layers == 3
    assert actplan.load_model(json.loads(CONFIG.read_text()), overrides=["num_hidden_layers=3"]).num_layers == 3


def test_a_models_fields_may_be_those_of_a_specification() -> None:
    given = {
        "hidden_size": 64,
        "vocab_size": 100,
        "layers": "2 x full_attention",
        "attention": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
        "mlp": {"intermediate_size": 128},
    }
    model = actplan.load_model(given, overrides=["mlp.intermediate_size=256"])
    assert (model.num_layers, model.hidden_size) == (2, 64)
    assert actplan.estimate(model, actplan.Run(sequence_length=64)).estimates.autograd.saved_bytes > 0


def test_a_preset_is_found_before_a_path_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text(CONFIG.read_text())
    monkeypatch.chdir(tmp_path)
    assert actplan.load_model("gpt2").source == "preset:gpt2"
    assert actplan.load_model("./gpt2").num_layers == 32
    assert actplan.load_model(Path("gpt2")).num_layers == 32


def test_a_hub_id_is_found_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models--org--name" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(CONFIG.read_text())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert actplan.load_model("org/name").name == "org/name"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("qwen27b", "did you mean 'qwen-27b'"),
        ("", "no preset and no file"),
        ("a\0b", "names no model"),
        ("nowhere/config.json", "no such file"),
        ({}, "hidden_size: missing"),
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"model_type": "llama", "num_attention_heads": -1}, "num_attention_heads"),
        ({1: 2}, "no field's name"),
    ],
    ids=["near", "empty", "nul", "path", "no-fields", "type", "field", "key"],
)
def test_what_names_no_model_is_an_input_error(reference: Any, said: str) -> None:
    with pytest.raises(actplan.InputError, match=re.escape(said)):
        actplan.load_model(reference)


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"checkpoint": "layer"}, "checkpoint"),
        ({"dtype": "bf16"}, "dtype"),
        ({"attention": "falsh"}, "attention"),
        ({"sequence_length": 0}, "sequence_length"),
        ({"micro_batch_size": "2"}, "micro_batch_size"),
        ({"mesh": 8}, "mesh"),
    ],
    ids=str,
)
def test_a_setting_of_the_wrong_kind_says_what_is_one(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(actplan.InputError) as error:
        actplan.estimate(actplan.load_model("gpt2"), actplan.Run(**settings))
    assert error.value.where == where


def test_a_recipe_refuses_what_was_chosen_against_it() -> None:
    model = actplan.load_model("llama-3-8b")
    half = actplan.Run(dtype=actplan.parse_dtype("fp16"))
    with pytest.raises(actplan.InputError, match="fp16"):
        actplan.budget(model, half, actplan.Setup(recipe="bf16"))
    with pytest.raises(actplan.InputError, match="autocast"):
        actplan.budget(model, actplan.Run(precision="autocast"), actplan.Setup(recipe="fsdp"))


@pytest.mark.parametrize(
    "setup",
    [
        actplan.Setup(strict=True),
        actplan.Setup(gpus=8),
        actplan.Setup(recipe="fdsp"),
        actplan.Setup(limit="80 apples"),
        actplan.Setup(microbatches=0),
        actplan.Setup(recipe="bf16", mfu="half", tokens="1T"),
    ],
    ids=["strict", "gpus", "recipe", "size", "count", "share"],
)
def test_a_setup_that_means_nothing_is_refused(setup: actplan.Setup) -> None:
    with pytest.raises(actplan.InputError):
        actplan.budget(actplan.load_model("gpt2"), actplan.Run(sequence_length=64), setup)


@pytest.mark.parametrize(
    "ask",
    [
        actplan.plan,
        lambda model: actplan.plan(model, limit="40GiB", only="jax"),
        lambda model: actplan.plan(model, limit="40GiB", frontier=True, largest="seq"),
        lambda model: actplan.sweep(model, axes={"seq": (1, 2)}),
        lambda model: actplan.sweep(model, axes={"sequence_length": ()}),
        lambda model: actplan.sweep(model, axes={"recipe": "fsdp"}),
        lambda model: actplan.ledger(model, layer=0, at_peak=True),
        lambda model: actplan.ledger(model, layer=99),
    ],
)
def test_a_question_that_means_nothing_is_refused(ask: Callable[[Any], object]) -> None:
    with pytest.raises(actplan.InputError):
        ask(actplan.load_model("gpt2"))


# --- the package -----------------------------------------------------------------------------------------------


def loaded(code: str) -> set[str]:
    """Everything that is imported once the code has run."""
    probe = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout))


def of_ours(names: set[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] == "actplan"}


def test_importing_loads_nothing_else() -> None:
    assert loaded("import actplan") - loaded("from __future__ import annotations; import typing") == {"actplan"}


def test_the_guard_can_fail() -> None:
    assert of_ours(loaded("from actplan import Mesh")) > {"actplan", "actplan.training.mesh"}


@pytest.mark.parametrize(
    "code",
    [
        "import actplan; actplan.estimate(actplan.load_model('gpt2'), actplan.Run(sequence_length=64))",
        "import actplan; actplan.budget(actplan.load_model('gpt2'), setup=actplan.Setup(recipe='fsdp', gpu='h100'))",
        "import actplan; actplan.sweep(actplan.load_model('gpt2'), axes={'dp': (1, 2)})",
    ],
    ids=["estimate", "budget", "sweep"],
)
def test_no_answer_loads_anything_heavy(code: str) -> None:
    names = loaded(code)
    assert not {name.partition(".")[0] for name in names} & {"rich", "typer", "numpy", "torch", "pydantic"}
    assert not {name for name in of_ours(names) if name.split(".")[1:2] in (["cli"], ["render"], ["trace"])}


def test_every_public_name_is_there_and_documented() -> None:
    for name in actplan.__all__:
        found = getattr(actplan, name)
        if name != "__version__":
            assert inspect.getdoc(found), name
        assert name in dir(actplan)
    with pytest.raises(AttributeError, match="no attribute 'estimates'"):
        actplan.estimates  # noqa: B018
    assert (Path(actplan.__file__).parent / "py.typed").is_file()


def test_no_module_hides_a_public_name() -> None:
    """A module named like a function would take its place as soon as something imports it."""
    inside = {path.stem for path in Path(actplan.__file__).parent.iterdir()}
    assert not inside & set(actplan.__all__)


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("code", examples())
def test_every_example_of_the_page_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})


def test_the_readme_s_example_prints_what_it_says(capfd: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(
        r"```python\n(.*?)```", (TESTS.parent / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    exec(compile(code, "README.md", "exec"), {})
    assert capfd.readouterr().out.strip() == code.rpartition("# ")[2].strip()


def test_the_page_names_everything_and_its_number_is_right() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in actplan.__all__:
        assert name in text or name == "__version__", name
    saved = actplan.estimate(actplan.load_model("qwen-27b")).estimates.autograd.saved_bytes
    assert f"saved_bytes  # {saved}\n" in text
