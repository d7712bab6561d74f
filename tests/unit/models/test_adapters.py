"""Adapters: what the state holds of a model that has them, where its other weights come from, refusals."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import silo_agent.training.machine.torchvision_compat  # noqa: F401  transformers imports torchvision
from chorale_models.model import Sizes, model
from crypto.errors import ConfigError
from silo_agent.training.base.passes import frozen_copy
from silo_agent.training.models import registry
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import model_arrays
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import make_data, make_job, make_work

pytest.importorskip("peft", reason="needs the extra language")

WORDS, LENGTH = 32, 8
ADAPTERS = {"rank": 4, "alpha": 8, "targets": ["q_proj", "v_proj"]}


class Tiny(nn.Module):
    """A llama of two layers from its configuration, and a linear layer on its mean output."""

    def __init__(self, sizes: Sizes) -> None:
        from transformers import LlamaConfig, LlamaModel

        super().__init__()
        config = LlamaConfig(
            vocab_size=WORDS,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
        )
        self.llama = LlamaModel(config)
        self.head = nn.Linear(16, sizes.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(self.llama(input_ids=tokens).last_hidden_state.mean(dim=1))
        return output


@pytest.fixture(autouse=True)
def _tiny_is_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = model(head="head")(lambda sizes, **_: Tiny(sizes))
    monkeypatch.setattr(registry, "loaded", lambda *_, **__: tiny)


def text_work(strategy: dict[str, Any] | None = None, **fields: Any) -> Work:
    """A text's class is the half of the vocabulary that most of its tokens are of."""
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, WORDS, (64, LENGTH))
    labels = (np.median(tokens, axis=1) >= WORDS / 2).astype(np.int64)
    job = make_job(
        strategy,
        **{
            "model": {"name": "tiny", "from": "hospital-models==1.0", "seed": 3},
            "adapters": ADAPTERS,
            "classes": 2,
            "input_shape": [LENGTH],
            "input_type": "int64",
            **fields,
        },
    )
    work = make_work(job, make_data(tokens, labels))
    train, holdout = (replace(each, features=tokens) for each in (work.data.train, work.data.holdout))
    return replace(work, data=replace(work.data, train=train, holdout=holdout))


def built(work: Work, folder: Path | None = None) -> Any:
    return registry.job_model_on_its_base(work.spec, folder)


def written_base(folder: Path, *, without: str = "", seed: int = 1) -> str:
    """A file as the network's makers would publish it, by its digest; what it is called is returned."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tensors = {
            name: each for name, each in Tiny(Sizes(classes=5)).state_dict().items() if name != without
        }
    save_file(tensors, folder / "model.safetensors")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "model.safetensors").rename(folder / f"{digest}.safetensors")
    return digest


def test_the_state_holds_adapters_and_head_alone() -> None:
    work = text_work()
    layers = [f"layers.{layer}.self_attn.{name}_proj" for layer in (0, 1) for name in "qv"]
    expected = {
        f"model/body.llama.{layer}.lora_{side}.default.weight" for layer in layers for side in "AB"
    } | {"model/head.weight", "model/head.bias"}
    assert initial_state(work.spec).keys() == expected
    for name, array in initial_state(work.spec).items():
        assert (".lora_B." in name) == (not array.any())
    values = TorchObjective(device="cpu").compute(work)
    assert values["delta"].size == sum(array.size for array in work.state.values()) < 1_100


def test_training_moves_adapters_and_head_and_leaves_the_base(tmp_path: Path) -> None:
    digest = written_base(tmp_path)
    objective = TorchObjective(device="cpu", base_models=tmp_path)
    work = text_work(adapters={**ADAPTERS, "base": digest})
    delta = objective.compute(work)["delta"]
    assert np.count_nonzero(delta) > 0.9 * delta.size - 2 * 2 * 4 * 16  # in a first step A's gradient is 0
    assert objective._with_base is not None
    kept = objective._with_base[1]
    for name, tensor in Tiny(Sizes(classes=5)).state_dict().items():
        if name.startswith("llama"):
            theirs = built(work, tmp_path).state_dict()
            inner = f"body.{name}" if f"body.{name}" in theirs else f"body.{name[:-7]}.base_layer.weight"
            assert torch.equal(kept.state_dict()[inner], theirs[inner])
            assert tensor.shape == theirs[inner].shape
    np.testing.assert_array_equal(objective.compute(work)["delta"], delta)  # on the kept model, too


def test_a_model_with_untrained_adapters_answers_as_its_base_does(tmp_path: Path) -> None:
    digest = written_base(tmp_path)
    work = text_work(adapters={**ADAPTERS, "base": digest})
    found = built(work, tmp_path).eval()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        plain = Tiny(Sizes(classes=5)).eval()
    tokens = torch.from_numpy(work.data.train.features)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if ".lora_B." in name:
                parameter.zero_()
        expected = plain.llama(input_ids=tokens).last_hidden_state.mean(dim=1)
        torch.testing.assert_close(found.features(tokens), expected)


def test_drawn_bases_are_the_same_at_every_silo() -> None:
    one, other = built(text_work()).state_dict(), built(text_work()).state_dict()
    name = "body.llama.embed_tokens.weight"
    assert torch.equal(one[name], other[name])
    reseeded = text_work(model={"name": "tiny", "from": "hospital-models==1.0", "seed": 4})
    assert not torch.equal(built(reseeded).state_dict()[name], one[name])


def test_a_teacher_does_not_copy_the_base() -> None:
    found = built(text_work())
    teacher = dict(frozen_copy(found).named_parameters())
    for name, parameter in found.named_parameters():
        assert (teacher[name] is parameter) == (not found.shares(name))


@pytest.mark.parametrize(
    "preset", ["fedntd", "moon", "scaffold", "ditto", "fedavg_ft", "fedper", "feddr_plus"]
)
def test_methods_train_adapters(preset: str) -> None:
    if preset == "fedntd":
        with pytest.raises(ValueError, match="needs 3 or more"):
            text_work({"preset": preset})
        return
    values = TorchObjective(device="cpu").compute(text_work({"preset": preset}))
    assert np.isfinite(values["delta"]).all()


def test_adapters_learn() -> None:
    work = text_work(training={"local_epochs": 40, "learning_rate": 0.1, "batch_size": 16})
    objective = TorchObjective(device="cpu")
    objective.compute(work)
    assert objective._with_base is not None
    state = {**work.state, **model_arrays(objective._with_base[1])}
    after = objective.compute(replace(work, state=state, phase_kind="evaluate"))
    assert int(after["correct"]) > 0.8 * int(after["tested"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": ["q_proj", "w_proj"]}, "no layer is named w_proj; linear ones are q_proj, k_proj"),
        ({"targets": ["mlp"]}, "adapters.targets: Target module LlamaMLP"),
        ({"targets": []}, "none is named, and the model's own function has put in no LoRA"),
    ],
)
def test_layers_that_take_no_adapter_are_named(change: dict[str, Any], message: str) -> None:
    work = text_work()
    spec = make_job(
        model=work.spec.model.model_dump(by_alias=True),
        adapters={**ADAPTERS, **change},
        classes=2,
        input_shape=[LENGTH],
        input_type="int64",
    )
    with pytest.raises(ConfigError, match=message):
        initial_state(spec)


def test_a_base_that_is_not_the_named_one_is_refused(tmp_path: Path) -> None:
    digest = written_base(tmp_path)
    work = text_work(adapters={**ADAPTERS, "base": digest})
    path = tmp_path / f"{digest}.safetensors"
    with pytest.raises(ConfigError, match="no folder is set"):
        built(work)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="it is not the file that the job names"):
        built(work, tmp_path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"need .*safetensors, which is not there"):
        built(work, tmp_path)
    lacking = written_base(tmp_path, without="llama.norm.weight")
    with pytest.raises(ConfigError, match="lacks 1 arrays of the job's model, such as llama.norm.weight"):
        built(text_work(adapters={**ADAPTERS, "base": lacking}), tmp_path)


def test_running_means_go_with_no_adapter() -> None:
    with pytest.raises(ValueError, match="model.norm: expected group or none with adapters, got batch"):
        make_job(model={"name": "resnet18"}, input_shape=[3, 8, 8], adapters=ADAPTERS)


def test_no_statistic_is_summed_over_a_body_that_adapters_may_hardly_move() -> None:
    """At rank 8 and alpha 0.01 16 drawn rounds were solved for each silo's sums of features, to 1e-6."""
    parts = {"regularizer": "feature-prototypes", "statistic": "feature-prototypes"}
    with pytest.raises(ValueError, match="adapters: not allowed with statistic feature-prototypes"):
        make_job({"parts": parts}, adapters=ADAPTERS)
    make_job({"parts": parts})  # the controls
    make_job({"preset": "fedavg"}, adapters=ADAPTERS)
