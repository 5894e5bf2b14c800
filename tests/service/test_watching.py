"""States of the processes: what is kept, and what several of them know together."""

import io
import json
import math

import numpy as np
import pytest
from handmade import samples, write_model

from density_softmax.decide.monitor import Monitor
from density_softmax.serve.predictor import Predictor
from density_softmax.service.models import answered
from density_softmax.service.timeline import MOST, Timeline
from density_softmax.service.watching import Watcher


@pytest.fixture(scope="module")
def predictor(table_file):
    return Predictor(table_file, threads=1)


@pytest.fixture
def watcher(predictor):
    made = []

    def make(state=None, replica=0, false_alarms=0.01, of=predictor, **more):
        made.append(Watcher(of.card, of.policy, false_alarms, state, replica, **more))
        return made[-1]

    yield make
    for each in made:
        each.retire()


def feed(target, predictor, x):
    target.record(x, answered(predictor, x).columns)


def test_a_kill_loses_no_input_that_was_answered(watcher, predictor, tmp_path):
    x = samples(predictor, 50)[0]
    before = watcher(tmp_path / "m.0.json")
    feed(before, predictor, x)
    before.save()
    feed(before, predictor, x[:7] + 2)  # noted in the log alone
    after = watcher(tmp_path / "m.0.json")
    assert after.view()["monitor"]["inputs"] == 57
    assert after.monitor.evidence == pytest.approx(before.view()["monitor"]["evidence"])
    assert after.view()["counts"]["answer"] >= 40
    again = watcher(tmp_path / "m.0.json")  # the log was read once
    assert again.view()["monitor"]["inputs"] == 57


def test_experts_are_watched_too_and_survive_a_kill(watcher, predictor, tmp_path):
    x = samples(predictor, 100)[0]
    x[:, 1] *= 3
    feed(watcher(tmp_path / "m.0.json"), predictor, x)
    found = watcher(tmp_path / "m.0.json").monitor
    expected = Monitor(predictor.policy)
    expected.update(predictor.predict(x))
    assert found.to_dict() == expected.to_dict()
    assert max(predictor.card.experts, key=found.moved.get) == "f1"


def test_replicas_are_merged_as_monitors_are(watcher, predictor, tmp_path):
    x = samples(predictor, 60)[0]
    pair = [watcher(tmp_path / f"m.{n}.json", n) for n in (0, 1)]
    for number, each in enumerate(pair):
        feed(each, predictor, x[number::2] + number)
        each.save()
    found = pair[0].view()
    merged = Monitor.merge([each.monitor for each in pair])
    assert found["replicas"] == 2
    assert found["monitor"]["inputs"] == 60
    assert found["monitor"]["evidence"] == merged.evidence
    last = found["timeline"]["intervals"][-1][1]["evidence"]
    assert last == pytest.approx(merged.evidence)
    assert sum(found["counts"].values()) == 60


def test_an_alarm_of_replicas_stays(watcher, predictor, tmp_path):
    strange = samples(predictor, 200)[0] + 5
    one = watcher(tmp_path / "m.0.json")
    feed(one, predictor, strange)
    assert one.view()["monitor"]["alarm"]
    one.save()
    other = watcher(tmp_path / "m.1.json", 1)
    assert other.view()["monitor"]["alarm"]


def test_an_acknowledged_alarm_ends_in_every_process_and_can_come_again(
    watcher, predictor, tmp_path
):
    strange = samples(predictor, 200)[0] + 5
    pair = [watcher(tmp_path / f"m.{n}.json", n) for n in (0, 1)]
    for each in pair:
        feed(each, predictor, strange)
        each.save()
        assert each.view()["monitor"]["alarm"]
    pair[1].acknowledge()
    for each in pair[::-1]:  # also before the other has followed
        found = each.view()
        assert not found["monitor"]["alarm"]
        assert found["monitor"]["acknowledged"]
        assert found["counts"]["unknown"] == 400
    again = watcher(tmp_path / "m.0.json")  # killed before it wrote its state
    assert not again.view()["monitor"]["alarm"]
    assert again.monitor.inputs == 0
    feed(pair[1], predictor, strange)
    pair[1].save()
    assert again.view()["monitor"]["alarm"]


def test_replicas_that_may_come_have_their_share_of_the_false_alarms(watcher, predictor):
    x = samples(predictor, 60)[0] + 1
    alone, among = watcher(), watcher(replicas=4)
    for each in (alone, among):
        feed(each, predictor, x)
    one, four = alone.view(), among.view()
    assert four["monitor"]["evidence"] == pytest.approx(one["monitor"]["evidence"] - math.log(4))
    last = four["timeline"]["intervals"][-1][1]["evidence"]
    assert last == pytest.approx(four["monitor"]["evidence"])


def test_the_state_of_another_policy_is_left_alone(watcher, predictor, tmp_path):
    one = watcher(tmp_path / "m.0.json")
    feed(one, predictor, samples(predictor, 20)[0])
    one.close()
    other = watcher(tmp_path / "m.0.json", false_alarms=0.2)
    assert other.view()["monitor"]["inputs"] == 0


def test_the_log_of_another_policy_is_not_read(watcher, predictor, tmp_path):
    one = watcher(tmp_path / "m.0.json")
    feed(one, predictor, samples(predictor, 20)[0])  # killed before its state has an input
    other = watcher(tmp_path / "m.0.json", false_alarms=0.2)
    assert other.view()["monitor"]["inputs"] == 0


def test_a_full_disk_stops_no_answer_and_loses_no_evidence(watcher, predictor, tmp_path):
    target, x = watcher(tmp_path / "m.0.json"), samples(predictor, 20)[0]
    target._log.close()
    target._log = io.FileIO("/dev/full", "w")
    feed(target, predictor, x)
    feed(target, predictor, x)
    target.save()
    feed(target, predictor, x)  # there is room again
    assert watcher(tmp_path / "m.0.json").view()["monitor"]["inputs"] == 60


def test_counts_without_a_policy_are_written_too(watcher, tmp_path):
    predictor = Predictor(write_model(tmp_path / "m.onnx", policy=False), threads=1)
    target, x = watcher(tmp_path / "m.0.json", of=predictor), samples(predictor, 20)[0]
    for _ in range(2):
        feed(target, predictor, x)
        target.save()
    kept = Timeline.from_dict(json.loads((tmp_path / "m.0.json").read_text())["timeline"])
    assert sum(each.counts[""] for each in kept.intervals.values()) == 40


def test_a_timeline_stays_short_and_counts_everything():
    line = Timeline()
    for second in range(0, 20_000, 7):
        line.at(1e9 + second).add({"answer": 2})
    assert len(line.intervals) <= MOST
    assert sum(each.counts["answer"] for each in line.intervals.values()) == 2 * len(
        range(0, 20_000, 7)
    )
    back = Timeline.from_dict(line.to_dict())
    assert back.to_dict() == line.to_dict()


def test_merged_timelines_have_the_evidence_of_merged_monitors():
    fine, coarse = Timeline(), Timeline()
    for line, evidence in ((fine, 1.0), (coarse, 3.0)):
        line.at(1e9).add({"answer": 1})
        line.at(1e9).evidence = evidence
    coarse.coarsen()
    merged = Timeline.merge([fine, coarse])
    (interval,) = merged.intervals.values()
    assert merged.seconds == coarse.seconds
    assert interval.counts == {"answer": 2}
    assert interval.evidence == pytest.approx(3.0 - math.log(2))


def test_unknown_images_are_shown_as_they_were_sent(watcher, image_file):
    predictor = Predictor(image_file, threads=1)
    target = watcher(of=predictor)
    raw = np.full((1, 4, 4, 3), 255, np.uint8)
    feed(target, predictor, predictor.prepare(raw))
    shown = target.view()["unknown"][0]
    assert shown["image"].startswith("data:image/jpeg;base64,")
    assert shown["label"] in predictor.class_names
