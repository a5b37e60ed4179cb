"""The examples, each whole at a small size, against SQL over everything they were given."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.cli.conftest import Run

EXAMPLES = Path(__file__).parents[2] / "examples"


def made(name: str, folder: Path, size: int) -> Path:
    """A copy of an example with its data."""
    shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns("*.master"))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(folder / name, size)
    return folder / name


def sql(query: str, folder: Path) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return Counter(connection.execute(query.replace("@", str(folder))).fetchall())


def sunk(folder: Path) -> str:
    """The files that a sink has committed, for SQL."""
    from semistream.spark.sinks import sink_files

    return f"read_parquet({[str(file) for file in sink_files(folder)]})"


def test_surrogate_keys(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    folder = made("surrogate_keys", tmp_path, 800)
    ended = run("run", folder / "pipeline.toml", "--json")
    assert ended.code == 0, ended.err
    first = check_surrogate_keys(folder)
    # A restart with deliveries that all came before brings nothing new.
    shutil.copy(folder / "sales" / "0.json", folder / "sales" / "9.json")
    assert run("run", folder / "pipeline.toml").code == 0
    assert check_surrogate_keys(folder) == first


def check_surrogate_keys(folder: Path) -> Counter[tuple[Any, ...]]:
    """Every sale is there once, every product of a shop has one key of its own."""
    first = sql(f"select sale, units, product_key from {sunk(folder / 'warehouse')}", folder)
    sales = sql("select distinct sale from read_json('@/sales/*.json')", folder)
    assert Counter({(sale,): 1 for sale, _, _ in first}) == sales
    assert first.total() == len(sales)
    pairs = sql(
        f"""select distinct s.shop, s.product, w.product_key from {sunk(folder / "warehouse")} w
        join (select distinct * from read_json('@/sales/*.json')) s using (sale)""",
        folder,
    )
    known = [(shop, product, key) for shop, product, key in pairs if product is not None]
    assert len({key for *_, key in known}) == len(known) == len({pair[:2] for pair in known})
    assert {key for _, product, key in pairs if product is None} == {-1}
    return first


def test_tpch(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    folder = made("tpch", tmp_path, 900)
    checked = run("run", "--check", folder / "pipeline.toml")
    assert checked.code == 0, checked.err
    assert not (folder / "customers.master").exists()
    ended = run("run", folder / "pipeline.toml", "--json")
    assert ended.code == 0, ended.err
    found, dead = check_tpch(folder)
    first, second = ended.json["joins"]
    assert Path(first["master"]).name == "customers.master"
    assert first["rows_in"] == 900 == first["matched"] + first["dead"]
    assert first["dead"] == dead > 100
    assert second["rows_in"] == found == second["matched"] + second["unmatched"]


def check_tpch(folder: Path) -> tuple[int, int]:
    """Orders of customers as they are after all changes; how many, and how many were given up."""
    now = """(select c_custkey, c_name, c_mktsegment, c_acctbal from '@/customers.parquet'
        where c_custkey >= 5 union all select c_custkey, c_name, c_mktsegment, c_acctbal
        from '@/changes/*.parquet' where op <> 'delete')"""
    orders = "read_json('@/orders/*.json')"
    wanted = sql(
        f"""select o_orderkey, o_custkey, l_partkey, c_name, c_mktsegment, c_acctbal, p_name,
        p_retailprice from {orders} join {now} on o_custkey = c_custkey
        left join '@/parts.parquet' on l_partkey = p_partkey""",
        folder,
    )
    found = sql(
        """select o_orderkey, o_custkey, l_partkey, c_name, c_mktsegment, c_acctbal, p_name,
        p_retailprice from '@/enriched/batch=*/*.parquet'""",
        folder,
    )
    assert found == wanted
    dead = sql("select o_orderkey, reason from read_json('@/given-up/batch=*/*.json')", folder)
    assert dead == sql(
        f"""select o_orderkey, case when o_custkey is null then 'the key is null'
        else 'no partner in customers.master' end from {orders}
        anti join {now} on o_custkey = c_custkey""",
        folder,
    )
    return found.total(), dead.total()


def test_weather(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    folder = made("weather", tmp_path, 700)
    ended = run("run", folder / "pipeline.toml")
    assert ended.code == 0, ended.err
    wanted = sql(
        """select r.*, station, height_m, case when station is null
        then 'no partner in stations.master' end from '@/reports/*.csv' r
        left join '@/stations.csv' using (latitude, longitude)""",
        folder,
    )
    assert sql("select * from '@/joined/*.parquet'", folder) == wanted
    assert "matched + 0 unmatched" in ended.out


COMMAND = "from semistream.cli import main; main()"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "check"), [("surrogate_keys", check_surrogate_keys), ("tpch", check_tpch)]
)
def test_killed_and_started_again(
    name: str, check: Callable[[Path], object], tmp_path: Path
) -> None:
    """Killed by -9 with all its processes at random moments, an example ends as if never."""
    folder = made(name, tmp_path, 60_000)
    file = folder / "pipeline.toml"
    file.write_text(file.read_text() + '[spark]\nmaster = "local[2]"\n')
    random = np.random.default_rng(5)
    kills = 0
    for life in range(12):
        last = life >= 6
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "run", str(file)],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            _, said = process.communicate(timeout=200 if last else random.uniform(6, 14))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
            continue
        assert process.returncode == 0, said.decode()
        break
    print(f"{kills} kills")
    assert kills > 0
    check(folder)


@pytest.mark.parametrize("name", ["orders", "surrogate_keys", "tpch", "weather"])
def test_a_check_says_what_will_happen(name: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / name
    if name == "orders":
        shutil.copytree(EXAMPLES / name, folder)
    else:
        folder = made(name, tmp_path, 100)
    before = sorted(folder.rglob("*"))
    ended = run("run", "--check", "--json", folder / "pipeline.toml")
    assert ended.code == 0, ended.err
    lines = dict(ended.json["plan"])
    assert ended.json["ok"]
    assert {"source", "sink", "trigger"} <= lines.keys()
    assert sorted(folder.rglob("*")) == before, "nothing was made"


CHANGES: dict[str, tuple[Callable[[str], str], str]] = {
    "type": (lambda text: text.replace('memory = "8MB"', "memory = true", 1), "true or false|text"),
    "name": (lambda text: text.replace("missing", "mising", 1), "did you mean 'missing'"),
    "missing file": (
        lambda text: text.replace('"customers.parquet"', '"nobody.parquet"'),
        "nobody",
    ),
    "missing folder": (lambda text: text.replace('path = "orders"', 'path = "none"'), "none"),
    "cycle": (lambda text: text.replace('path = "enriched"', 'path = "orders/out"'), "a cycle"),
    "cycle of a feed": (lambda text: text.replace('"given-up"', '"changes"'), "a cycle"),
    "key": (lambda text: text.replace('key = "c_custkey"', 'key = "nokey"'), "nokey"),
    "feed": (
        lambda text: text.replace('[[feed]]\nmaster = "customers', '[[feed]]\nmaster = "others'),
        "no step reads",
    ),
    "rule": (lambda text: text.replace('"dead"', '"retry"'), "retry_for"),
    "kind": (lambda text: text.replace("[[step]]", '[[step]]\nkind = "joins"', 1), "kind of step"),
    "both": (lambda text: text + '\n[master]\npath = "m"\n[join]\non = "x"\n', "exclude"),
    "a list": (lambda text: text.replace("[[feed]]", "[feed]"), "not a list"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_check_finds(change: str, run: Run, tmp_path: Path) -> None:
    folder = made("tpch", tmp_path, 50)
    file = folder / "pipeline.toml"
    make, text = CHANGES[change]
    changed = make(file.read_text())
    assert changed != file.read_text()
    file.write_text(changed)
    failed = run("run", "--check", file)
    assert failed.code == 2
    assert any(part in failed.err for part in text.split("|")), failed.err
