"""Aceso's archive: read without unpacking, refused with the place, and its measured configurations predicted."""

import io
import json
import shutil
import tarfile

import pytest

from benchmarks.accuracy.__main__ import predicted, summary
from benchmarks.accuracy.tables import read
from benchmarks.peer_problems.__main__ import main as peer_main
from benchmarks.peer_problems.aceso.archive import AcesoConfiguration, read_archive
from benchmarks.peer_problems.aceso.cluster import aceso_cluster
from benchmarks.peer_problems.aceso.job import AcesoModel, places
from benchmarks.peer_problems.aceso.layer import EMBEDDING, FINAL, HEAD, LAYER
from benchmarks.peer_problems.aceso.profile import aceso_profile
from costmodel.errors import InvalidInput
from costmodel.machines.cluster import read_cluster
from costmodel.model.profile import read_profile
from costmodel.stages.config import StageConfig
from planner.commands import main
from planner.plan import read_plan
from tests.support.published_data import folder

HIDDEN, LAYERS, SEQUENCE, HEADS = 64, 2, 32, 4
UNIT = SEQUENCE * HIDDEN * 2
MIB = 2**20
TIMES = "profiled-time-mist-all-a10g/"
CONFIG = "logs-mist-all-a10g/aceso/configs/gpt/tiny/top_configs/two.json"
WEIGHTS = {EMBEDDING: 0.5, HEAD: 0.4375} | {kind.name: 0.01 * kind.size for kind in LAYER if kind.weight}


def table(degree, size, forward=100.0, backward=200.0):
    names = [EMBEDDING, *(kind.name for kind in LAYER), FINAL, HEAD]
    rows = [f"{name},{forward * size / degree},{backward * size / degree},{WEIGHTS.get(name, 0)}" for name in names]
    return "\n".join(["op_name,forward-compute,backward-compute,weights", *rows])


def configuration(**changes):
    again = [[0, 1, 1, 1, *[0] * 11], [0] * 14]
    counts = [15, 14]
    body = {
        "num_layers": LAYERS, "seq_length": SEQUENCE, "num_attention_heads": HEADS, "hidden_size": HIDDEN,
        "global_batch_size": 8, "micro_batch_size": 1, "num_gpus": [1, 2], "num_ops_in_each_stage": counts,
        "model_parallel_size_of_each_op": [[1] * 15, [2] * 14],
        "data_parallel_size_of_each_op": [[1] * n for n in counts], "recompute_ops": again,
    }  # fmt: skip
    return json.dumps(body | changes)


def files(**changes):
    found = {f"{TIMES}gpt_tiny_mbs{m}_tp{t}_algo0.csv": table(t, m) for m in (1, 2) for t in (1, 2)}
    found |= {f"{TIMES}p2p_{where}_node.csv": "1,16,64\n1,2,2" for where in ("inter", "intra")}
    found[f"{TIMES}prim_gpt_tiny_all_reduce_3gpus.csv"] = (
        "data_size(MB),time(ms)\n1,1\n8,8\n10000000,1000000\n16,1000000"
    )
    found[CONFIG] = configuration()
    return found | changes


def archive(tmp_path, content):
    path = tmp_path / "aceso.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_a_layer_keeps_what_megatron_keeps(tmp_path):
    """Korthikanti et al., 2022, section 4.1: 34 s b h + 5 a s^2 b."""
    graph = aceso_profile(read_archive(archive(tmp_path, files()), "a10g", "tiny")).graph
    kept = {saved.storage: saved.size_bytes for o in graph.operators if o.module == "layers.0" for saved in o.saved}
    assert sum(kept.values()) == 34 * SEQUENCE * HIDDEN + 5 * HEADS * SEQUENCE**2
    assert len(graph.operators) == 13 * LAYERS + 4


def test_shards_leave_out_what_ranks_sum(tmp_path):
    slow = table(2, 1, 9000.0, 9000.0)  # a sum stands inside
    content = files(**{f"{TIMES}gpt_tiny_mbs1_tp2_algo0.csv": slow})
    shards = aceso_profile(read_archive(archive(tmp_path, content), "a10g", "tiny")).shards
    assert [row[0] for row in shards["0.enc-attention-dense"]["2/row"]] == [50_000, 50_000, 50_000]
    assert [row[0] for row in shards["0.enc-attention-qkv"]["2/column"]] == [50_000, 50_000, 50_000]
    assert [row[0] for row in shards["0.enc-MLP-gelu"]["2/inner"]] == [4_500_000, 4_500_000, 0]


def test_a_throttled_forward_counts_as_half_of_its_backward(tmp_path):
    content = files(**{f"{TIMES}gpt_tiny_mbs1_tp1_algo0.csv": table(1, 1, 300.0, 200.0)})
    times = aceso_profile(read_archive(archive(tmp_path, content), "a10g", "tiny")).times_of
    assert times["0.enc-attention-qkv"].forward_ns[0] == 100_000
    assert times["0.enc-attention-softmax"].forward_ns[0] == 300_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{TIMES}gpt_tiny_mbs1_tp1_algo0.csv": "op_name,forward-compute\n"}, "no column backward-compute"),
        ({f"{TIMES}gpt_tiny_mbs1_tp1_algo0.csv": table(1, 1, float("nan"))}, "'nan' stands where a number"),
        ({f"{TIMES}p2p_inter_node.csv": "1,2\n3"}, "one of as many rates"),
        ({CONFIG: "[1"}, "no configuration of Aceso's"),
        ({CONFIG: configuration(num_gpus=[1])}, "not of one length a stage"),
        ({CONFIG.replace("two", "three"): configuration(num_layers=0)}, "below 1"),
    ],
)
def test_what_is_wrong_in_an_archive_is_named(tmp_path, changes, message):
    with pytest.raises(InvalidInput, match=r"aceso\.tar\.gz") as error:
        read_archive(archive(tmp_path, files(**changes)), "a10g", "tiny")
    assert message in str(error.value)


def test_an_archive_is_bounded_and_only_plain_files_are_read(tmp_path):
    path = tmp_path / "large.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo(f"{TIMES}gpt_tiny_mbs1_tp1_algo0.csv")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(InvalidInput, match="no operators, messages and configurations"):
        read_archive(path, "a10g", "tiny")
    header = tarfile.TarInfo("large")
    header.size = 1 << 40
    path.write_bytes(header.tobuf())
    with pytest.raises(InvalidInput, match="no such archive is so large"):
        read_archive(path, "a10g", "tiny")


def test_the_command_writes_profile_cluster_and_links(tmp_path, capsys):
    source, profile, cluster = archive(tmp_path, files()), tmp_path / "p.json", tmp_path / "c.toml"
    words = [str(source), "--format", "aceso", "-o", str(profile), "--model", "tiny"]
    assert peer_main([*words, "--device", "a10g", "--cluster-output", str(cluster), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operators"] == 13 * LAYERS + 4
    known = read_archive(source, "a10g", "tiny")
    assert read_profile(profile) == aceso_profile(known)
    assert read_cluster(cluster) == aceso_cluster(known)
    assert known.collectives["all_reduce", 3] == [(1, 1), (8, 8)]
    assert peer_main(words) == 2
    assert peer_main([*words, "--device", "h100"]) == 3
    said = capsys.readouterr().err
    assert "--device is missing" in said
    assert "a10g tiny" in said


def test_a_configuration_is_a_candidate_with_its_own_degrees_and_recompute(tmp_path):
    model = AcesoModel(read_archive(archive(tmp_path, files()), "a10g", "tiny"))
    found: AcesoConfiguration = model.archive.shape
    first, second = places(found)
    assert first.config.recomputed_operators == ("0.enc-1st-layernorm", "0.enc-attention-qkv", "0.enc-attention-score")
    assert (second.config, second.ranks) == (StageConfig(tensor=2), (1, 2))
    predicted = model.predicted("two")
    again_us, own_us = 3 * 100, 15 * 200
    assert predicted.stages[0].forward_ns == 8 * 15 * 100_000
    added = predicted.stages[0].backward_ns - 8 * (again_us + own_us) * 1000
    assert 0 < added < 8 * 20_000  # the gradients, added to those that are there
    assert predicted.step_ns > predicted.stages[0].forward_ns + predicted.stages[0].backward_ns


def test_operators_that_run_again_keep_what_flows_into_them(tmp_path):
    model = AcesoModel(read_archive(archive(tmp_path, files()), "a10g", "tiny"))
    evaluator, candidate = model.candidate(model.archive.shape)
    (held, _) = (evaluator.pricer.models(place)[0].kept_bytes(place.config) for place in candidate.places)
    plain = evaluator.simulate(candidate).priced.costs.stages[0].activation_bytes
    assert isinstance(plain, int)
    assert plain < held
    config = StageConfig(recompute="operators", recomputed_operators=("0.enc-MLP-gelu",))
    price = evaluator.pricer.models(candidate.places[0])[0]
    rows = range(15)
    kept = [price.stage(rows, each, (0,)).activation_bytes for each in (StageConfig(), config)]
    assert kept[0] == kept[1]  # its input is what it keeps, and its output is kept by the next
    assert price.stage(rows, config, (0,)).recompute_ns == 100_000


def test_published_configurations_of_small_models_are_predicted():
    """Steps of one model a device; all are in docs/validation.md (`python -m benchmarks.accuracy`)."""
    folder("published", "aceso_a10g_l4.tar.gz")
    tables = [read(folder("published", f"validation_aceso_{name}.csv")) for name in ("measured", "per_stage")]
    found = summary(predicted([row for table in tables for row in table if "6_7B_8stages" in row.name]))
    assert not found["skipped"]
    for device in ("a10g", "l4"):
        steps, stages = found["sources"][f"Aceso {device}"], found["sources"][f"{device} stages"]
        assert steps["time_mape_percent"] < 4
        assert stages["forward_mape_percent"] < 6
        assert stages["backward_mape_percent"] < 8
        assert stages["memory_mape_percent"] < 4
        assert stages["memory_upper_bound_coverage_percent"] == 100


def test_tables_of_a_folder_without_the_archive_say_what_is_missing(tmp_path):
    for name in ("measured", "per_stage"):
        shutil.copy(folder("published", f"validation_aceso_{name}.csv"), tmp_path)
        found = summary(predicted(read(tmp_path / f"validation_aceso_{name}.csv")))
        assert not found["rows"]
        assert "aceso_a10g_l4.tar.gz" in found["skipped"][0]["why"]


@pytest.mark.parametrize(
    "config",
    [
        {"recompute": "operators"},
        {"recompute": "full", "recomputed_operators": ("a",)},
    ],
)
def test_operators_that_run_again_go_with_their_way_to_recompute(config):
    with pytest.raises(InvalidInput, match="it goes with recompute 'operators'"):
        StageConfig(**config)


def test_a_pin_file_names_operators_that_run_again(tmp_path, capsys):
    source, profile, plan = archive(tmp_path, files()), tmp_path / "p.json", tmp_path / "plan.json"
    cluster, pins = tmp_path / "c.toml", tmp_path / "pins.toml"
    words = [str(source), "--format", "aceso", "--device", "a10g", "--model", "tiny", "-o", str(profile)]
    assert peer_main([*words, "--cluster-output", str(cluster)]) == 0
    again = 'config = { recompute = "operators", again = ["1.enc-MLP-gelu", "1.enc-MLP-GEMM-2"] }'
    first = f'[[stage]]\noperators = ["layers.1", "final*", "gpt*", "loss"]\nranks = [1]\n{again}\n'
    pins.write_text(f'{first}[[stage]]\noperators = ["*"]\n')
    words = ["plan", str(profile), "--cluster", str(cluster), "--devices", "2", "--batch", "4", "--pin", str(pins)]
    assert main([*words, "--microbatch-size", "1", "-o", str(plan)]) == 0
    found = read_plan(plan)
    assert found.stages[1].config.recomputed_operators == ("1.enc-MLP-gelu", "1.enc-MLP-GEMM-2")
    assert found.stages[1].cost.recompute_ns == 200_000
    assert main(["validate", str(plan)]) == 0
    pins.write_text(pins.read_text().replace("1.enc-MLP-gelu", "0.enc-MLP-gelu"))
    assert main([*words, "--microbatch-size", "1", "-o", str(plan)]) == 2
    assert "names '0.enc-MLP-gelu', which the stage from '1.enc-1st-layernorm'" in capsys.readouterr().err
