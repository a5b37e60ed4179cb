"use strict";

/* The panels: what each shows of a list of moments, and how it is read. No state, no network. */

const semistream = {};

(() => {
  // --- numbers for people ------------------------------------------------------------------

  const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

  function scaled(value, digits) {
    const size = Math.abs(value);
    for (const [unit, name] of UNITS) {
      if (size >= unit) return (value / unit).toPrecision(digits) + " " + name;
    }
    if (size >= 1 || size === 0) return String(Math.round(value * 10) / 10);
    return value.toPrecision(2);
  }

  const whole = new Intl.NumberFormat("en");
  const format = {
    rate: (value) => (Math.abs(value) < 1000 ? String(Math.round(value)) : scaled(value, 3)) + "/s",
    rateTick: (value) => short(value),
    bytes: (value) => {
      for (const [unit, name] of UNITS) {
        if (value >= unit) return (value / unit).toFixed(1) + " " + (name === "k" ? "kB" : name + "B");
      }
      return value + " B";
    },
    bytesTick: (value) => (value === 0 ? "0" : short(value) + "B"),
    share: (value) => (100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0) + " %",
    shareTick: (value) => Math.round(100 * value) + "%",
    seconds: (value) => {
      if (value >= 90) return (value / 60).toFixed(1) + " min";
      if (value >= 1) return value.toFixed(1) + " s";
      if (value >= 1e-3) return (value * 1e3).toPrecision(value >= 0.1 ? 3 : 2) + " ms";
      return (value * 1e6).toPrecision(2) + " µs";
    },
    secondsTick: (value) => {
      if (value >= 1) return value + " s";
      return value >= 1e-3 ? Math.round(value * 1e3) + " ms" : Math.round(value * 1e6) + " µs";
    },
    ms: (value) => format.seconds(value / 1000),
    msTick: (value) => (value >= 1000 ? value / 1000 + " s" : value + " ms"),
    figure: (value) => (value === 0 ? "0" : value >= 100 ? scaled(value, 3) : value.toPrecision(3)),
    count: (value) => (value < 1e5 ? whole.format(value) : scaled(value, 3)),
  };

  function short(value) {
    for (const [unit, name] of UNITS) {
      if (Math.abs(value) >= unit) return Number((value / unit).toPrecision(3)) + name;
    }
    return String(Number(value.toPrecision(3)));
  }

  // --- the panels --------------------------------------------------------------------------

  // A series: `of` picks its number from a moment; `colour` is a variable of the style sheet.
  const field = (name) => (moment) => moment[name];
  const above = (name) => (moment) => (moment[name] > 0 ? moment[name] : null);
  const total = (name) => (moment) => moment.totals && moment.totals[name];

  // The large ones at the bottom, in one order whatever their sizes do.
  const FIRST_COMPONENTS = ["cache", "pool", "queue", "waiting rows", "read buffer", "output"];
  const COMPONENT_COLOURS = ["blue", "teal", "violet", "amber", "sky", "rose", "lime", "grey"];

  const PHASES = [
    ["addBatch", "join and sink", "teal"],
    ["queryPlanning", "planning", "violet"],
    ["latestOffset", "source", "blue"],
    ["getBatch", "get batch", "sky"],
    ["walCommit", "log", "amber"],
    ["commitOffsets", "commit", "rose"],
  ];

  function phases() {
    const known = PHASES.map(([name, label, colour]) => ({
      label, colour, of: (moment) => (moment.batch_ms ? moment.batch_ms[name] || 0 : null),
    }));
    const rest = (moment) => {
      if (!moment.batch_ms) return null;
      let left = moment.batch_ms.triggerExecution || 0;
      for (const [name] of PHASES) left -= moment.batch_ms[name] || 0;
      return Math.max(left, 0);
    };
    return [...known, { label: "other", colour: "grey", of: rest }];
  }

  function components(moments) {
    const names = new Set();
    for (const moment of moments) {
      for (const name of Object.keys(moment.bytes_by_component || {})) names.add(name);
    }
    const place = (name) => {
      const at = FIRST_COMPONENTS.indexOf(name);
      return at < 0 ? FIRST_COMPONENTS.length : at;
    };
    const ordered = [...names].sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
    return ordered.map((name, at) => ({
      label: name,
      colour: COMPONENT_COLOURS[at % COMPONENT_COLOURS.length],
      of: (moment) => (moment.bytes_by_component ? moment.bytes_by_component[name] || 0 : null),
    }));
  }

  semistream.format = format;

  semistream.panels = [
    {
      id: "rates", title: "Rows per second", wide: true,
      hint: "Joined follows input when the pipeline keeps up; where it stays below, rows pile up. " +
        "Shaded: falling behind or over budget.",
      value: format.rate, tick: format.rateTick, marksState: true,
      lines: () => [
        { label: "input", colour: "blue", of: field("input_rows_s"), fill: true },
        { label: "joined", colour: "teal", of: field("joined_rows_s") },
      ],
      facts: [
        ["at the source", (moment) => moment.rows_behind, format.count],
        ["waiting in the join", (moment) => moment.rows_waiting, format.count],
        ["rows in all", total("numRecordsIn"), format.count],
      ],
    },
    {
      id: "memory", title: "Memory",
      hint: "What the join holds, by component. The stack stays below the dashed budget.",
      value: format.bytes, tick: format.bytesTick, summary: "peak", few: 3,
      stack: components,
      lines: () => [{ label: "budget", colour: "bad", of: field("bytes_limit"), dashed: true }],
    },
    {
      id: "time", title: "Where the time goes",
      hint: "Mostly busy: CPU is the limit. Disk: reads are the limit. Waiting: there is room.",
      value: format.share, tick: format.shareTick, top: 1, summary: "mean",
      stack: () => [
        { label: "busy", colour: "teal", of: field("busy_share") },
        { label: "disk", colour: "amber", of: field("io_share") },
        { label: "waiting", colour: "grey", of: field("idle_share") },
      ],
    },
    {
      id: "latency", title: "Age and latency",
      hint: "Oldest: the row that waits longest. p50 to p99: from a row's entry to its result.",
      value: format.seconds, tick: format.secondsTick, log: true,
      lines: () => [
        { label: "oldest", colour: "rose", of: above("oldest_s") },
        { label: "p99", colour: "violet", of: above("latency_p99_s") },
        { label: "p95", colour: "blue", of: above("latency_p95_s") },
        { label: "p50", colour: "sky", of: above("latency_p50_s") },
      ],
    },
    {
      id: "hits", title: "Hits and hottest keys", keys: true,
      hint: "Share of look-ups that need no read; keys with their share of the stream.",
      value: format.share, tick: format.shareTick, top: 1,
      lines: () => [{ label: "hits", colour: "amber", of: field("hit_share"), fill: true }],
    },
    {
      id: "cost", title: "Cost per row",
      hint: "Fewer pages is better; measured (per second of work) should reach predicted.",
      value: format.figure, tick: format.rateTick, room: 1.5,
      lines: () => [
        { label: "pages a row", colour: "violet", of: field("pages_per_row"), fill: true },
        { label: "measured", colour: "teal", of: field("measured_rows_s"), scale: "right",
          value: format.rate },
        { label: "predicted", colour: "amber", of: field("predicted_rows_s"), scale: "right",
          value: format.rate, dashed: true },
      ],
    },
    {
      id: "batches", title: "Spark's micro-batch",
      hint: "Time of a micro-batch by phase. All but join and sink is Spark's fixed cost.",
      value: format.ms, tick: format.msTick, few: 3,
      stack: phases,
      facts: [["batch", (moment) => moment.batch, format.count]],
    },
    {
      id: "lost", title: "Without a partner",
      hint: "Unmatched: no master row. Dead letters: unusable. Shed: dropped by choice.",
      value: format.rate, tick: format.rateTick, least: 10,
      lines: () => [
        { label: "unmatched", colour: "blue", of: field("unmatched_rows_s"), fill: true,
          count: total("numUnmatchedProbeRecords") },
        { label: "dead letters", colour: "rose", of: field("dead_rows_s"),
          count: total("numDeadLetters") },
        { label: "shed", colour: "amber", of: field("shed_rows_s"),
          count: total("numShedRecords") },
      ],
    },
  ];
})();
