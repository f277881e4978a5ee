"""The defaults: a learning rate that fits the noise, for any model, and what speaks against it."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, jvp

import dpdt
from dpdt import config, data
from dpdt.accounting import account
from dpdt.config import plan_of
from dpdt.errors import InputError
from dpdt.methods import rate
from dpdt.methods.dpdt import Dpdt
from dpdt.methods.rate import fitting, typical
from dpdt.methods.rate import reach_of as reach
from dpdt.methods.settings import PrivacySettings
from dpdt.training.loop import prepare

X = torch.rand(60, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
Y = torch.arange(60) % 3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))


# which defaults


def test_the_rule_is_the_default():
    method = Dpdt()
    auto = (method.lr, method.penalty, method.averaging, method.preconditioner, method.clip)
    assert auto == ("auto",) * 5
    assert (method.sampling, method.granularity, method.memory) == ("poisson", "model", "shared")


@pytest.mark.parametrize("given", [{"global_lr": 1.0}, {"noise": 1.0}, {"lr": 0.5}, {"clip": 0.1}])
def test_no_key_changes_the_default_of_another(given):
    """To write down a value, even the one that is the default, used to change eight others."""
    told, plain = asdict(Dpdt(**given)), asdict(Dpdt())
    assert {k for k in told if told[k] != plain[k]} == {
        k for k in given if given[k] != getattr(Dpdt(), k)
    }


def test_a_file_is_written_with_the_values_it_stands_for():
    tables = config.Config(privacy=PrivacySettings(epsilon=3.0)).as_tables()
    assert tables["method"] == {k: v for k, v in asdict(Dpdt()).items() if v is not None}


def test_auto_is_refused_where_its_reasoning_does_not_hold():
    for override, message in (
        ("method.penalty=1.0", "needs penalty = 'auto', found 1.0"),
        ("method.memory=none", "needs memory = 'shared', found 'none'"),
        ("method.auxiliaries=10", "needs auxiliaries = 'per-example', found 10"),
        ("method.granularity=layer", "needs granularity = 'model', found 'layer'"),
        ("method.preconditioner=rmsprop", "'auto' is for a step as long as its gradient"),
        ("privacy.accountant=hidden-state-convex", "needs privacy.accountant = 'composition'"),
    ):
        with pytest.raises(InputError, match=message):
            config.load("digits", (override,), "dpdt")


def test_the_preconditioner_is_public_where_that_can_be():
    public = -X[:10]
    for model, options, expected in (
        (nn.Linear(6, 3), {"public": public}, "public"),
        (nn.Linear(6, 3), {}, "identity"),
        (nn.Linear(6, 3), {"public": public[:1]}, "identity"),
        (nn.Linear(6, 3, bias=False), {"public": public}, "identity"),
        (network(), {"public": public}, "identity"),
    ):
        step, _ = prepare(model, (X, Y), epsilon=3.0, epochs=2, batch_size=20, **options)
        assert step.plan.header.preconditioner == expected
        assert (step.whitened is not None) == (expected == "public")
        assert step.plan.at(0).clip == ((0.3,) if expected == "public" else (0.1,))


def test_what_is_told_beforehand_is_what_is_done():
    """`dpdt account` knows no model: it must find the same preconditioner and the same ε."""
    told = plan_of(config.load("digits", ("method.preconditioner=auto",), "dpdt")).ledger()
    assert told.header.preconditioner == "public"
    examples = data.load("digits")
    public, examples = data.set_aside(examples, 100)
    chosen = config.load("digits", ("method.preconditioner=auto",), "dpdt")
    step, _ = prepare(nn.Linear(64, 10), examples.train, public=public, using=chosen)
    done = account(step.plan.ledger(), 1e-5)
    assert [g.epsilon for g in done.guarantees] == [
        g.epsilon for g in account(told, 1e-5).guarantees
    ]
    overrides = ("method.preconditioner=auto", "model.name=mlp")
    assert plan_of(config.load("digits", overrides, "dpdt")).header.preconditioner == "identity"


# how far θ reaches


def test_reach_is_the_norm_of_the_jacobian():
    model = network().double().eval()
    parameters = {k: v.detach() for k, v in model.named_parameters()}
    many = torch.randn(200, 6, dtype=torch.float64)
    squares = []
    for x in many:
        jacobian = jacrev(lambda p, x=x: functional_call(model, p, (x[None],))[0])(parameters)
        squares.append(sum(j.square().sum() for j in jacobian.values()) / 3)
    expected = float(torch.stack(squares).mean().sqrt())
    model.train()
    model[0].eval()
    with torch.no_grad():  # as someone may have around a loop of their own
        assert reach(model, many) == pytest.approx(expected, rel=0.05)  # random signs: an estimate
    assert [m.training for m in model.children()] == [False, True, True, True]


def test_reach_of_a_linear_model_is_that_of_its_inputs():
    squares = X.square().sum(1) + 1.0
    assert reach(nn.Linear(6, 3), X) == pytest.approx(float(squares.mean().sqrt()), rel=1e-5)


@pytest.mark.parametrize("make", [network, lambda: Adapted()], ids=["all", "adapters"])
def test_private_examples_are_not_looked_at(make):
    found = []
    for shift in (0.0, 100.0):
        torch.manual_seed(0)
        step, _ = prepare(make(), (X + shift, Y), epsilon=3.0, epochs=2, batch_size=20)
        found.append(step.plan.at(0))
    assert found[0] == found[1]


def test_inputs_that_nothing_can_stand_in_for():
    tokens = torch.zeros(4, 7, dtype=torch.long)
    for inputs in ((tokens, Y[:4]), {"input_ids": tokens, "labels": Y[:4]}):
        with pytest.raises(InputError, match="'auto' needs public inputs here"):
            typical(None, inputs, network())
    assert torch.equal(typical(tokens, (tokens, Y[:4]), network()), tokens)
    assert typical(X[:0], (X, Y), network()).shape == (32, 6)  # none are none


def test_tokens_stand_in_for_tokens():
    tokens = torch.full((4, 7), 99)
    given = {"input_ids": tokens, "attention_mask": tokens, "kinds": tokens, "labels": Y[:4]}
    found = typical(None, given, Bag())
    assert set(found) == {"input_ids", "attention_mask", "kinds"}
    assert set(found["input_ids"].flatten().tolist()) == set(range(9))  # all that Bag knows
    assert found["attention_mask"].unique().tolist() == [1]
    assert found["kinds"].unique().tolist() == [0]
    assert torch.equal(typical(None, (tokens, Y[:4]), Bag()), found["input_ids"])


def test_public_inputs_are_read_as_the_model_reads_the_data():
    """Double precision for a model in single; a Dataset of mappings for one that takes names."""
    options = {"epsilon": 3.0, "epochs": 2, "batch_size": 20}
    prepare(nn.Linear(6, 3), (X.double(), Y), public=-X.double(), **options)
    tokens = [{"input_ids": torch.arange(4) + i % 5, "labels": Y[i]} for i in range(40)]
    public = {"input_ids": torch.randint(9, (20, 4))}
    prepare(Bag(), Mappings(tokens), loss=by_name, public=public, **options)


class Mappings(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def by_name(model, batch):
    return nn.functional.cross_entropy(model(input_ids=batch["input_ids"]).logits, batch["labels"])


@pytest.mark.parametrize("public", [torch.full((3, 6), torch.nan), torch.zeros(3, 6)])
def test_a_model_that_cannot_be_measured_is_refused(public):
    model = nn.Linear(6, 3, bias=False)
    with pytest.raises(InputError, match="needs a model whose outputs change"):
        prepare(model, (X, Y), public=public, epsilon=3.0, epochs=2, batch_size=20)


def test_a_model_that_takes_more_than_inputs_is_refused_with_its_error():
    class Two(nn.Linear):
        def forward(self, x, y):
            return super().forward(x)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(*batch), batch[1])

    with pytest.raises(InputError, match=r"the model makes of inputs alone.*'y'"):
        prepare(Two(6, 3), (X, Y), loss=loss, epsilon=3.0, epochs=2, batch_size=20)


def test_outputs_that_do_not_depend_on_what_is_trained_are_refused():
    class Labels(nn.Linear):
        def forward(self, x):
            outputs = super().forward(x)
            return outputs if self.training else outputs.argmax(1)

    def loss(model, batch):
        return model(batch[0]).float().mean()

    with pytest.raises(InputError, match="its outputs do not depend on what is trained"):
        prepare(Labels(6, 3), (X, Y), loss=loss, epsilon=3.0, epochs=2, batch_size=20)


class Bag(nn.Module):
    """Takes tokens as a mapping, or by name as a transformers model does."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, inputs=None, input_ids=None):
        if inputs is not None:
            return self.table(inputs["input_ids"]).mean(1)
        return SimpleNamespace(logits=self.table(input_ids).mean(1))


def test_tokens_are_measured_as_the_model_is_trained_on_them():
    tokens = {"input_ids": torch.randint(9, (20, 4))}
    model = Bag()
    once = reach(model, tokens)
    assert once == reach(model, tokens, by_name=True) > 0.0


def test_public_inputs_can_be_set_aside_from_tokens():
    tokens, labels = {"input_ids": torch.arange(20).view(10, 2)}, torch.arange(10)
    examples = data.Examples(train=(tokens, labels), test=(tokens, labels))
    public, rest = data.set_aside(examples, 4)
    assert public["input_ids"].tolist() == tokens["input_ids"][:4].tolist()
    assert rest.test[0]["input_ids"].tolist() == tokens["input_ids"][4:].tolist()
    assert rest.test[1].tolist() == list(range(4, 10))
    with pytest.raises(InputError, match="read from files one by one"):
        data.set_aside(data.Examples(train=[], test=[]), 4)


# the learning rate


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_learning_rate_lets_a_fixed_amount_of_noise_through(epsilon):
    """Simulated: noise alone, through the engine, stays below the deviation that was meant."""
    model = nn.Linear(2000, 2)
    with torch.no_grad():
        model.weight.zero_()
    zeros = torch.zeros(50, 2000)
    step, loader = prepare(
        model, (zeros, torch.arange(50) % 2), public=torch.randn(20, 2000), epsilon=epsilon,
        epochs=60, batch_size=50, preconditioner="identity", lr="auto", averaging=0.0,
    )  # fmt: skip
    for batch in loader:
        step(batch)
    # the multiplier is clipped as one block, so much of the noise's momentum is cut off again
    outputs = torch.randn(200, 2000) @ model.weight.detach().t()
    assert 0.05 < float(outputs.std()) < 1.2
    setting = step.plan.at(0)
    assert setting.penalty * setting.lr == pytest.approx(0.1)
    moved = setting.noise[0] * 60**0.5 / (2 * setting.penalty**2 * setting.lr)
    assert moved * 2001**0.5 == pytest.approx(1.0, rel=0.02)


def test_the_learning_rate_does_not_change_what_is_guaranteed():
    target = ("privacy.epsilon=3.0",)
    ledger = plan_of(config.load("digits", target, "dpdt")).ledger()
    fixed = plan_of(config.load("digits", (*target, "method.lr=0.5"), "dpdt")).ledger()
    assert ledger.runs[0].setting.noise == fixed.runs[0].setting.noise
    assert ledger.runs[0].setting.lr != fixed.runs[0].setting.lr
    assert fixed.runs[0].setting.penalty == pytest.approx(0.2)


def test_without_noise_the_learning_rate_has_a_limit():
    inputs = torch.nn.functional.normalize(X)  # of norm 1, so they reach √2 with the bias
    step, _ = prepare(
        nn.Linear(6, 3), (X, Y), public=inputs, preconditioner="identity", noise=0.0, batch_size=20,
        lr="auto",
    )  # fmt: skip
    assert step.plan.at(0).lr == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("noise", "steps"), [(1e-4, 300), (0.01, 300), (0.01, 3000), (1e-9, 300), (0.0, 300)]
)
def test_the_learning_rate_of_a_network(noise, steps):
    """η = 0.6/√(σTR), and at most 16/R, where R is the reach at twice the weights."""
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    step, _ = prepare(
        model, (X, Y), public=-X, noise=noise, batch_size=20, epochs=steps // 3, lr="auto"
    )
    assert all(map(torch.equal, model.parameters(), before))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    grown = reach(model, -X[:32])
    expected = 16.0 / grown
    if noise:
        expected = min(expected, 0.6 / (noise * steps * grown) ** 0.5)
    assert step.plan.at(0).lr == pytest.approx(expected, rel=1e-6)
    assert (noise < 1e-6) == (step.plan.at(0).lr == pytest.approx(16.0 / grown))


def test_more_noise_steps_or_reach_never_make_the_learning_rate_larger():
    sizes = [10.0**k for k in range(-8, 3)]
    for linear in (False, True):
        for which in range(3):
            found = []
            for size in sizes:
                given = [1e-3, 300, 5.0]
                given[which] = size if which != 1 else max(1, round(size * 1e8))
                found.append(fitting(*given, linear=linear))
            assert found == sorted(found, reverse=True)
            assert len(set(found)) > 2


def test_the_documented_rule_is_the_code_s():
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert f"η = {rate.NETWORK:g}/√(σ T R)" in text
    assert f"at most {rate.NETWORK_FASTEST:g}/R" in text
    assert f"at most {rate.FASTEST:g}/R²" in text
    assert f"weights times {rate.GROWN:g}" in text


def test_reach_at_grown_weights_leaves_the_model_alone():
    model = network()
    once, before = reach(model, X), [p.detach().clone() for p in model.parameters()]
    grown = reach(model, X, grown=2.0)
    assert all(map(torch.equal, model.parameters(), before))
    assert all(p.grad is None for p in model.parameters())
    assert reach(model, X) == once < grown
    assert reach(nn.Linear(6, 3), X, grown=2.0) == reach(nn.Linear(6, 3), X)


@pytest.mark.parametrize("exact", [True, False])
def test_a_continued_run_keeps_its_learning_rate(exact):
    """It was measured on the model as it was at the start, which the new one need not be."""
    options = {"epsilon": 3.0, "epochs": 4, "batch_size": 20}
    whole, ended = network(), network()
    step, loader = prepare(whole, (X, Y), **options)
    for batch in loader:
        step(batch)
        if batch.step == 5:
            state, secrets = step.state_dict(), step.secrets()
            runs = list(step.writer.ledger.runs)
    for p in ended.parameters():
        nn.init.normal_(p)
    other, loader = prepare(ended, (X, Y), **options)
    assert other.plan.at(0).lr != step.plan.at(0).lr
    if exact:
        other.writer.adopt(runs)
        other.resume(state, secrets)
    else:
        other.load_state_dict(state)
    assert other.plan.at(0) == step.plan.at(0)
    for batch in loader:
        other(batch)
    for a, b in zip(whole.parameters(), ended.parameters(), strict=True):
        assert torch.equal(a, b) == exact  # otherwise its noise is fresh
    assert len(other.writer.ledger.runs) == 1
    assert other.writer.ledger.runs == step.writer.ledger.runs


@pytest.mark.parametrize(("epochs", "expected"), [(4, 0.0), (200, 1.0 - 1.0 / 24.0)])
def test_averages_go_over_a_few_percent_of_the_run(epochs, expected):
    step, _ = prepare(network(), (X, Y), epsilon=3.0, epochs=epochs, batch_size=20)
    assert step.plan.recipe.averaging == pytest.approx(expected)
    assert step.plan.header.averaging == step.plan.recipe.averaging


@pytest.mark.parametrize("hidden", [0, 64])
def test_the_defaults_learn_digits_without_any_tuning(hidden):
    """ε = 3, with and without a hidden layer, with public inputs for the one that can use them."""
    public, examples = data.set_aside(data.load("digits"), 100)
    model = nn.Linear(64, 10)
    if hidden:
        model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    fitted = dpdt.train(
        model, examples.train, test=examples.test, public=None if hidden else public, epsilon=3.0,
        epochs=100, batch_size=1437,
    )  # fmt: skip
    assert fitted.history[-1]["accuracy"] > 0.87
    assert fitted.privacy.epsilon <= 3.0


# networks that were trained before


class Adapted(nn.Module):
    """A layer with an adapter of rank 4, which starts as a product with 0, and a head."""

    def __init__(self, *, frozen=True):
        super().__init__()
        self.base = nn.Linear(6, 20).requires_grad_(not frozen)
        self.first, self.second = nn.Linear(6, 4, bias=False), nn.Linear(4, 20, bias=False)
        nn.init.zeros_(self.second.weight)
        self.head = nn.Linear(20, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.base(x) + 8.0 * self.second(self.first(x))))


OPTIONS = {"noise": 1e-3, "epochs": 100, "batch_size": 20}


def by_the_law(model):
    """η of networks, of which no weights are frozen."""
    inputs = typical(None, (X, Y), model)
    return fitting(1e-3, 300, reach(model, inputs, grown=rate.GROWN), linear=False)


def test_noise_leaves_what_a_network_with_adapters_knows():
    """At the rate, the noise of a run is as much linear as not in what it does to outputs.

    The rate used to be the law's, at which noise destroyed a pretrained network.
    """
    torch.manual_seed(0)
    model = Adapted()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    lr = prepare(model, (X, Y), **OPTIONS)[0].plan.at(0).lr
    assert lr < 0.6 * by_the_law(model)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert all(m.training for m in model.modules())
    theta = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    inputs = typical(None, (X, Y), model)
    start, linear, beyond = model(inputs), 0.0, 0.0
    for _ in range(50):
        z = {n: torch.randn_like(p) * 50 * 1e-3 * 300**0.5 * lr for n, p in theta.items()}
        _, slope = jvp(lambda t: functional_call(model, t, (inputs,)), (theta,), (z,))
        moved = functional_call(model, {n: p + z[n] for n, p in theta.items()}, (inputs,)) - start
        linear += float(slope.square().sum())
        beyond += float((moved - slope).square().sum())
    assert (beyond / linear) ** 0.5 == pytest.approx(1.0, abs=0.25)


def test_others_keep_the_rate_of_networks():
    """All of it is trained; or what is trained is a linear layer, through which noise is linear."""
    torch.manual_seed(0)
    head = Adapted()
    for layer in (head.first, head.second):
        layer.requires_grad_(False)
    for model in (Adapted(frozen=False), head):
        step, _ = prepare(model, (X, Y), **OPTIONS)
        assert step.plan.at(0).lr == pytest.approx(by_the_law(model))


def test_a_product_bears_noise_as_large_as_its_first_factor():
    """(second · first)x from second = 0: of noise z in both, z₂·first·x is linear and z₂z₁x not."""
    first, second = nn.Linear(500, 40, bias=False), nn.Linear(40, 300, bias=False)
    nn.init.normal_(first.weight, std=0.02)
    nn.init.zeros_(second.weight)
    product = nn.Sequential(first, second)
    inputs = torch.randn(16, 500)
    assert 0.1 * rate.bearable(product, inputs, 0.1) == pytest.approx(0.02, rel=0.15)
    assert rate.bearable(product, inputs, 0.015) == 1.0
    assert rate.bearable(second, torch.randn(16, 40), 1e6) == 1.0
    assert rate.bearable(product, inputs, 1e30) == rate.LEAST  # where outputs are not finite


@pytest.mark.parametrize(("noise", "share"), [(1e-4, 1.0), (5e-3, 0.308)])
def test_noise_moves_parameters_as_far_as_the_rule_takes_it_to(noise, share):
    """Through the engine. Of larger noise a multiplier that is clipped leaves a share."""
    model = nn.Linear(1500, 2)
    nn.init.zeros_(model.weight)
    step, loader = prepare(
        model, (torch.zeros(10, 1500), torch.arange(10) % 2), noise=noise, clip=0.1, lr=0.3,
        penalty=0.1 / 0.3, epochs=200, batch_size=10, averaging=0.0,
    )  # fmt: skip
    for batch in loader:
        step(batch)
    assert float(model.weight.detach().std()) == pytest.approx(step.plan.moved(), rel=0.1)
    unclipped = 50 * noise * 200**0.5 * 0.3
    assert step.plan.moved() == pytest.approx(unclipped * share, rel=0.02)


def test_correlated_noise_moves_parameters_as_far_as_the_rule_takes_it_to():
    """Its multiplier is not clipped, so no share of it is lost, however large the noise is."""
    model = nn.Linear(1500, 2)
    nn.init.zeros_(model.weight)
    step, loader = prepare(
        model, (torch.zeros(100, 1500), torch.arange(100) % 2), noise=5e-3, clip=0.1, lr=0.3,
        penalty=0.1 / 0.3, epochs=20, batch_size=10, averaging=0.0, sampling="partition",
        noise_bands=8,
    )  # fmt: skip
    for batch in loader:
        step(batch)
    assert float(model.weight.detach().std()) == pytest.approx(step.plan.moved(), rel=0.1)
    assert step.plan.moved() < 0.5 * 50 * 5e-3 * 200**0.5 * 0.3  # of independent noise, unclipped


@pytest.mark.parametrize(("start", "said"), [((1, 1), None), ((1, 0), "2.weight)")])
@pytest.mark.parametrize("frozen", [False, True])
def test_weights_that_start_at_0_are_warned_of(start, said, frozen, recwarn):
    """Unless others are frozen: then noise is tried."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3), nn.Linear(3, 3))
    for layer, scale in zip((model[0], model[2]), start, strict=True):
        nn.init.normal_(layer.weight, std=scale)
    model[3].requires_grad_(not frozen)
    prepare(model, (torch.randn(40, 6), torch.arange(40) % 3), noise=1.0, batch_size=20)
    told = [str(w.message) for w in recwarn if "start at 0" in str(w.message)]
    assert [f"(here {said}" in text for text in told] == ([True] if said and not frozen else [])
