"""The monitor: few false alarms ever, quick ones after a change, and a state that survives."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from worlds import Predicted, gaussians

import density_softmax as ds
from density_softmax.decide.conformal import Ranks
from density_softmax.decide.martingale import (
    BINS,
    MEMORY,
    NUM_BETS,
    POWERS,
    PRIOR,
    SLOPES,
    Bag,
    Bets,
    Watch,
)
from density_softmax.errors import UserError


def sample(count, seed=0, **options):
    return gaussians(count, np.random.default_rng(seed), **options)


def policy(count=500, seed=0):
    return ds.Policy.fit(None, sample(count, seed))


def bags(calibration):
    """The bags of many streams as one."""
    each = [vars(Bag.of(scores, seed=i)) for i, scores in enumerate(calibration)]
    return Bag(**{name: np.stack([bag[name] for bag in each]) for name in each[0]})


@pytest.mark.parametrize("decimals", [12, 0])
def test_p_values_of_a_stream_are_uniform_and_independent(decimals):
    """Also where most scores are equal."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(400):
        scores = np.round(rng.standard_normal(60), decimals)
        bag = Bag.of(scores[:20], seed=seed)
        found.append(bag.p_values(scores[20:], rng))
    p = np.array(found)
    assert stats.kstest(p.ravel(), "uniform").pvalue > 1e-3
    # Sums over a stream spread as those of independent numbers do.
    spread = p.sum(1).var() / (p.shape[1] / 12)
    assert 0.75 < spread < 1.3


def test_p_values_against_calibration_samples_alone_are_not_independent():
    """The trap that the bag avoids: it is why the spread above is worth a test."""
    rng = np.random.default_rng(0)
    p = np.array(
        [Ranks.of(rng.standard_normal(20)).p_values(rng.standard_normal(40)) for _ in range(400)]
    )
    assert p.sum(1).var() / (p.shape[1] / 12) > 2


def test_p_values_of_a_batch_are_those_of_one_input_after_another():
    scores = np.random.default_rng(1).standard_normal(300)
    one, other = (Bag.of(scores[:100], most=16) for _ in range(2))

    class Half:
        def random(self, shape):
            return np.full(shape, 0.5)

    batch = one.p_values(scores[100:], Half())
    single = [other.p_values(scores[i : i + 1], Half())[0] for i in range(100, 300)]
    assert batch == pytest.approx(single)
    assert (one.counts == other.counts).all()


def test_capital_is_that_of_betting_step_by_step():
    """The same by hand: sleep, wake, bet; in one batch, in several, and input by input."""
    p = np.random.default_rng(7).random(400) ** 1.5
    asleep, awake, histogram, path = 1.0, np.zeros(NUM_BETS), np.zeros(BINS), []
    for step, each in enumerate(p, start=1):
        stays = math.log(step + 1) / math.log(step + 2)
        cell = int(each * BINS)
        heights = (histogram + PRIOR) / (histogram + PRIOR).sum()
        factors = [
            *(k * each ** (k - 1) for k in POWERS),
            *(1 + slope * (1 - 2 * each) for slope in SLOPES),
            BINS * heights[cell],
        ]
        awake = (awake + asleep * (1 - stays) / NUM_BETS) * factors
        asleep *= stays
        histogram *= 1 - 1 / MEMORY
        histogram[cell] += 1
        path.append(math.log(asleep + awake.sum()))
    for size in (400, 77, 1):
        bets = Bets.of()
        found = [bets.update(p[i : i + size]) for i in range(0, 400, size)]
        assert np.concatenate(found) == pytest.approx(path, abs=1e-9)


def test_streams_without_a_change_ever_alarm_at_most_as_often_as_allowed():
    rng, streams = np.random.default_rng(2), 400
    bag, bets = bags(rng.standard_normal((streams, 100))), Bets.of(streams)
    highest = np.full(streams, -math.inf)
    for _ in range(50):
        path = bets.update(bag.p_values(rng.standard_normal((streams, 20)), rng))
        highest = np.maximum(highest, path.max(1))
    for rate in (0.05, 0.2, 0.5):
        alarms = (highest >= -math.log(rate)).sum()
        assert alarms <= stats.binom.ppf(0.999, streams, rate)
    assert np.exp(path[:, -1]).mean() < 2  # a martingale from 1


def test_the_monitor_itself_raises_few_false_alarms():
    alarms = 0
    for seed in range(60):
        monitor = ds.Monitor(policy(200, seed), false_alarms=0.1, seed=seed)
        for part in range(3):
            monitor.update(sample(200, 1000 + 3 * seed + part)[0])
        alarms += monitor.alarm
    assert alarms <= stats.binom.ppf(0.999, 60, 0.1)


@pytest.mark.parametrize("before", [0, 3000])
def test_a_change_of_epistemic_scores_is_found_soon(before):
    monitor = ds.Monitor(policy())
    if before:
        assert not monitor.update(sample(before, 1)[0])
    assert monitor.update(sample(200, 2, shift=1.5)[0])
    assert before < monitor.alarmed_at <= before + 60
    assert monitor.evidence >= math.log(100)


def test_a_change_of_confidence_alone_is_found():
    monitor = ds.Monitor(policy())
    p, _ = sample(1000, 1)
    blurred = Predicted(0.5 * p.probs + 0.1, p.aleatoric, p.epistemic)
    assert monitor.update(blurred)
    assert next(iter(monitor.moved)) == "confidence"


def test_the_expert_that_moved_is_named():
    rng = np.random.default_rng(3)
    calibration = {"layer1": rng.standard_normal(500), "layer2": rng.standard_normal(500)}
    monitor = ds.Monitor(policy(), experts=calibration)
    scores = {"layer1": rng.standard_normal(300), "layer2": rng.standard_normal(300) + 1}
    monitor.update(sample(300, 4)[0], experts=scores)
    assert next(iter(monitor.moved)) == "layer2"
    assert not monitor.alarm  # experts explain, they do not alarm
    before = monitor.moved["layer2"]
    monitor.update(sample(10, 5)[0])  # which tells nothing about them
    assert monitor.moved["layer2"] == before
    with pytest.raises(UserError, match="experts layer3: this monitor has layer1, layer2"):
        monitor.update(sample(10, 5)[0], experts={"layer3": np.zeros(10)})


def test_rows_that_are_not_finite_count_as_most_unusual():
    p, _ = sample(30, 1)
    broken = p._replace(epistemic=np.full(30, math.nan))
    monitor = ds.Monitor(policy())
    assert monitor.update(broken)
    assert monitor.not_finite == 30
    used_to_it = sample(500)[0]
    often = np.arange(500) % 2 == 0
    mixed = used_to_it._replace(epistemic=np.where(often, math.nan, used_to_it.epistemic))
    fitted = ds.Policy.fit(None, (mixed, sample(500)[1]))
    stream = p._replace(epistemic=np.where(np.arange(30) % 2, math.nan, p.epistemic))
    assert not ds.Monitor(fitted).update(stream)


def test_the_estimated_accuracy_is_near_the_true_one_in_domain():
    inside = 0
    for seed in range(100):
        monitor = ds.Monitor(policy(500, seed))
        p, y = sample(500, 1000 + seed)
        monitor.update(p)
        low, high = monitor.accuracy[1:]
        inside += low <= (p.probs.argmax(1) == y).mean() <= high
    assert inside >= stats.binom.ppf(0.001, 100, 0.95)


def test_the_accuracy_is_that_of_the_latest_inputs():
    monitor = ds.Monitor(policy(), window=400)
    p, _ = sample(400, 1)
    for _ in range(5):
        monitor.update(p)
    at_first = monitor.accuracy.value
    doubtful = p._replace(probs=0.5 * p.probs + 0.1)
    for _ in range(2):
        monitor.update(doubtful)
    expected = monitor.reliability.estimate(monitor.reliability.sums(doubtful.probs.max(1)))
    assert monitor.accuracy == pytest.approx(expected)
    assert monitor.accuracy.value < at_first - 0.2


def test_labels_say_whether_the_confidences_still_hold():
    monitor = ds.Monitor(policy(2000))
    assert monitor.check is None
    p, y = sample(1000, 1)
    monitor.update(p, labels=y)
    assert monitor.check.holds
    assert monitor.check.accuracy.value == (p.probs.argmax(1) == y).mean()
    wrong = (y + 1) % 5
    monitor.add_labels(p, np.where(np.arange(1000) < 500, wrong, -1))
    assert not monitor.check.holds


def test_a_monitor_goes_on_where_it_was_saved(tmp_path):
    whole, path = ds.Monitor(policy()), tmp_path / "state.json"
    whole.save(path)
    for part in range(4):
        p, y = sample(50, 10 + part, shift=0.2)
        whole.update(p, labels=y)
        halved = ds.Monitor.load(path)
        halved.update(p, labels=y)
        halved.save(path)
    assert ds.Monitor.load(path).to_dict() == whole.to_dict()


def test_the_state_does_not_grow_with_the_stream():
    monitor = ds.Monitor(policy())
    sizes = []
    for part in range(1500):
        monitor.update(sample(3, part)[0])
        sizes.append(len(json.dumps(monitor.to_dict())) if part % 100 == 99 else 0)
    assert max(sizes) < 60_000
    assert len(monitor.history) <= 400


def test_a_reset_forgets_the_stream():
    monitor = ds.Monitor(policy())
    monitor.update(sample(200, 1, shift=2.0)[0])
    assert monitor.alarm
    monitor.reset()
    assert not monitor.alarm
    assert monitor.evidence == pytest.approx(-math.log(2))
    assert not monitor.update(sample(300, 2)[0])


def test_merged_replicas_find_a_change_and_can_go_on():
    replicas = [ds.Monitor(policy(), seed=seed) for seed in range(4)]
    for seed, replica in enumerate(replicas):
        replica.update(sample(100, 20 + seed, shift=0.6 * (seed == 2))[0])
    merged = ds.Monitor.merge(replicas)
    assert merged.inputs == 400
    assert merged.evidence == pytest.approx(max(r.evidence for r in replicas) - math.log(4))
    assert merged.update(sample(100, 30, shift=2.0)[0])
    with pytest.raises(UserError, match="different policies"):
        ds.Monitor.merge([replicas[0], ds.Monitor(policy(seed=9))])


def test_merged_replicas_ever_alarm_at_most_as_often_as_allowed():
    """They share calibration samples, and are merged again and again."""
    rng, alarms, rate = np.random.default_rng(5), 0, 0.2
    for _ in range(100):
        start = Bag.of(rng.standard_normal(50))
        replicas = [Watch.of(start) for _ in range(4)]
        found = -math.inf
        for _ in range(20):
            for replica in replicas:
                replica.update(rng.standard_normal(20), rng)
            found = max(found, Watch.merged(replicas).evidence)
        alarms += found >= -math.log(rate)
    assert alarms <= stats.binom.ppf(0.999, 100, rate)


def test_an_empty_batch_changes_nothing():
    monitor = ds.Monitor(policy())
    before = monitor.to_dict()
    assert not monitor.update(sample(0, 1)[0])
    assert monitor.to_dict() == before


def test_a_monitor_needs_calibration_samples():
    class Model:
        def predict(self, x):
            p, _ = sample(500)
            return Predicted(*(values[x] for values in p))

    with pytest.raises(UserError, match="calibration="):
        ds.Monitor(Model())
    y = sample(500)[1]
    monitor = ds.Monitor(Model(), calibration=(np.arange(500), y))
    assert not monitor.update(sample(100, 1)[0])


@pytest.mark.parametrize("text", ["", "{}", '{"format": "other"}'])
def test_a_file_that_is_no_state_is_refused(tmp_path, text):
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"state\.json"):
        ds.Monitor.load(path)
