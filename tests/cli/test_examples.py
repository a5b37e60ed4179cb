"""The examples, each whole at a small size, against SQL over everything they were given."""

from __future__ import annotations

import importlib.util
import json
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

    from semistream.testing.postgres import PostgresServer
    from tests.cli.conftest import Run

EXAMPLES = Path(__file__).parents[2] / "examples"


def made(name: str, folder: Path, size: int) -> Path:
    """A copy of an example with its data."""
    (folder / name).mkdir()
    shutil.copy(EXAMPLES / name / "pipeline.toml", folder / name)
    maker(name).make(folder / name, size)
    return folder / name


def maker(name: str) -> Any:
    """What makes the data of an example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_late_customers(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    """Orders wait for their customer over restarts, are released once, or given up; in every
    summary rows add up, those that an earlier run left waiting among them."""
    folder = made("late_customers", tmp_path, 400)
    file = folder / "pipeline.toml"
    example = maker("late_customers")
    asked = duckdb.connect().execute

    def counted(condition: str) -> int:
        orders = f"read_json('{folder}/orders/*.json')"
        ((count,),) = asked(f"select count(*) from {orders} where {condition}").fetchall()
        return int(count)

    def ran(until: dict[str, int]) -> None:
        """Run, again if need be, until rows are where they should be."""
        left = counted_before
        for _ in range(12):
            ended = run("run", file, "--seconds", 4, "--json")
            assert ended.code == 0, ended.err
            if not ended.json["joins"]:
                continue
            (did,) = ended.json["joins"]
            places = {name: did[name] for name in ("matched", "unmatched", "dead", "waiting")}
            assert did["rows_in"] == sum(places.values()), did
            for name in ("matched", "dead"):
                left[name] += places[name]
            left["waiting"] = places["waiting"]
            if {name: left[name] for name in until} == until:
                return
        raise AssertionError(f"{left} instead of {until}")

    counted_before = {"matched": 0, "dead": 0, "waiting": 0}
    known, late = counted("customer_id < 200"), counted("customer_id between 200 and 229")
    never = counted("customer_id >= 230")
    assert min(known, late, never) > 5
    ran({"matched": known, "waiting": late + never})
    example.bring_late_ones(folder)
    ran({"matched": known + late, "waiting": never})
    file.write_text(file.read_text().replace("10 minutes", "1 second"))
    example.send(folder, "9.json", 1000, [1, 999, 999])
    ran({"matched": known + late + 1, "dead": 2, "waiting": never})
    found = sql("select order_id, customer_id, name from '@/enriched/batch=*/*.parquet'", folder)
    assert found == sql(
        """select order_id, customer_id, 'customer ' || customer_id
        from read_json('@/orders/*.json') where customer_id < 230""",
        folder,
    )
    dead = sql("select order_id, reason from read_json('@/given-up/batch=*/*.json')", folder)
    why = "no partner in customers.master within 1 second"
    assert dead == Counter([(1001, why), (1002, why)])


def test_customers_in_a_database(
    run: Run, spark: SparkSession, tmp_path: Path, postgres: PostgresServer
) -> None:
    shutil.copytree(EXAMPLES / "orders", tmp_path / "orders")
    file = tmp_path / "orders" / "database.toml"
    text = file.read_text().replace("postgresql://user@localhost/shop", postgres.uri)
    file.write_text(text)
    import pyarrow.csv

    from semistream.spark.sinks import connect

    failed = run("run", "--check", file)
    assert failed.code == 2
    assert "[[step]] 1: table 'customers'" in failed.err
    with connect(postgres.uri) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("customers", pyarrow.csv.read_csv(file.with_name("customers.csv")))
        connection.commit()
    checked = run("run", "--check", "--json", file)
    assert checked.code == 0, checked.err
    assert "unknown keys given up: by auto with customers (" in dict(checked.json["plan"])["join"]
    ended = run("run", file, "--json")
    assert ended.code == 0, ended.err
    (did,) = ended.json["joins"]
    assert did["master"] == "table customers"
    assert did["rows_in"] == 60 == did["matched"] + did["dead"]
    wanted = """select order_id, name, city, case when o.customer_id is null then 'the key is null'
        when name is null then 'no partner in customers' end from read_json('@/orders/*.json') o
        left join '@/customers.csv' using (customer_id)"""
    found = f"select order_id, name, city, reason from {sunk(file.with_name('enriched'))}"
    assert sql(found, file.parent) == sql(wanted, file.parent)


COMMAND = "from semistream.cli import main; main()"


def lived(file: Path, seconds: float | None, *options: str) -> bytes | None:
    """What a run in a process of its own says at its end; None if it was killed by -9, with all
    its processes, after that time."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "run", str(file), "--json", *options],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        told, said = process.communicate(timeout=seconds or 200)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    assert process.returncode == 0, said.decode()
    return told


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "check"), [("surrogate_keys", check_surrogate_keys), ("tpch", check_tpch)]
)
def test_killed_and_started_again(
    name: str, check: Callable[[Path], object], tmp_path: Path
) -> None:
    """Killed at random moments, an example ends as if never."""
    folder = made(name, tmp_path, 60_000)
    file = folder / "pipeline.toml"
    file.write_text(file.read_text() + '[spark]\nmaster = "local[2]"\n')
    random = np.random.default_rng(5)
    kills = 0
    while lived(file, random.uniform(6, 14) if kills < 6 else None) is None:
        kills += 1
    print(f"{kills} kills")
    assert kills > 0
    check(folder)


@pytest.mark.slow
@pytest.mark.spark
def test_killed_while_rows_wait_for_their_customer(tmp_path: Path) -> None:
    """Rows that wait survive, and are released once: those of late customers after they came."""
    folder = made("late_customers", tmp_path, 4000)
    file, example = folder / "pipeline.toml", maker("late_customers")
    file.write_text(file.read_text() + '[spark]\nmaster = "local[2]"\n')
    random = np.random.default_rng(7)
    kills = 0
    for life in range(6):
        if life == 3:
            example.bring_late_ones(folder)
        example.send(folder, f"{life + 2}.json", 10_000 + 1000 * life, list(range(240)))
        kills += lived(file, random.uniform(8, 16)) is None
    told = lived(file, None, "--seconds", "30")
    assert told is not None
    (did,) = json.loads(told)["joins"]
    found = sql("select order_id from '@/enriched/batch=*/*.parquet'", folder)
    sent = "read_json('@/orders/*.json')"
    assert found == sql(f"select order_id from {sent} where customer_id < 230", folder)
    ((never,),) = sql(f"select count(*) from {sent} where customer_id >= 230", folder)
    print(f"{kills} kills, {never} rows still wait")
    assert did["waiting"] == never
    assert kills == 6


@pytest.mark.parametrize("name", ["orders", "surrogate_keys", "tpch", "weather", "late_customers"])
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
