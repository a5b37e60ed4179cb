"use strict";

/* The page: draws the panels of moments that come as events, or of a recorded run. */

(() => {
  const RECENT_S = 300;
  const LEAST_SPAN_S = 30;
  const MOST_MOMENTS = 400;
  const WHOLE_EVERY_MS = 5000;
  const SYNC = "semistream";
  const LATER = "waiting for the first rows …";

  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    // Always as text: what comes from the stream may look like markup.
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // --- colours -----------------------------------------------------------------------------

  let style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue("--" + name).trim();

  function faded(name, alpha) {
    const hex = colour(name).slice(1);
    const parts = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${parts.join(",")},${alpha})`;
  }

  // --- a panel -----------------------------------------------------------------------------

  const clockText = new Intl.DateTimeFormat("en-GB", {
    hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const known = (value) => value !== null && value !== undefined;

  class Panel {
    constructor(definition) {
      this.definition = definition;
      this.plot = null;
      this.shape = "";
      this.moments = [];
      this.cursor = null;
      this.root = element("section", "panel" + (definition.wide ? " wide" : ""));
      this.root.id = "panel-" + definition.id;
      const head = element("div", "head");
      head.append(element("h2", "", definition.title));
      this.legend = element("ul", "legend");
      head.append(this.legend);
      const body = element("div", "body");
      this.place = element("div", "plot");
      this.place.setAttribute("role", "img");
      this.place.setAttribute("aria-label", definition.title);
      this.nothing = element("div", "nothing", LATER);
      this.place.append(this.nothing);
      body.append(this.place);
      if (definition.keys) {
        this.keys = element("ol", "keys");
        this.keys.setAttribute("aria-label", "Hottest keys");
        body.append(this.keys);
      }
      const hint = element("p", "hint", definition.hint);
      hint.title = definition.hint;
      this.root.append(head, body, hint);
      new ResizeObserver(() => this.resized()).observe(this.place);
    }

    resized() {
      const box = this.place.getBoundingClientRect();
      if (this.plot && box.width > 0) this.plot.setSize({ width: box.width, height: box.height });
    }

    restyled() {
      this.shape = "";
      this.draw(this.moments);
    }

    draw(moments) {
      this.moments = moments;
      const stack = this.definition.stack ? this.definition.stack(moments) : [];
      const lines = this.definition.lines ? this.definition.lines() : [];
      this.parts = [...stack, ...lines];
      const columns = this.parts.map((part) =>
        moments.map((moment) => {
          const value = part.of(moment);
          return known(value) ? value : null;
        }));
      this.values = columns;
      const seen = columns.some((column) => column.some(known));
      this.nothing.hidden = seen;
      this.root.dataset.filled = String(seen);
      if (seen) this.drawn(moments, stack.length, columns);
      this.showLegend();
      if (this.keys) this.showKeys();
    }

    drawn(moments, stacked, columns) {
      const x = moments.map((moment) => moment.at);
      // Each layer of a stack stands on those before it.
      const tops = columns.slice(0, stacked);
      for (let at = 1; at < stacked; at++) {
        const below = tops[at - 1];
        tops[at] = tops[at].map((value, i) =>
          known(value) ? value + (below[i] || 0) : below[i]);
      }
      const data = [x, ...tops, ...columns.slice(stacked)];
      const shape = this.parts.map((part) => part.label).join("|");
      if (!this.plot || shape !== this.shape) this.build(data, stacked, shape);
      else this.plot.setData(data);
    }

    build(data, stacked, shape) {
      if (this.plot) this.plot.destroy();
      this.shape = shape;
      const box = this.place.getBoundingClientRect();
      this.plot = new uPlot(this.options(stacked, box), data, this.place);
    }

    options(stacked, box) {
      const { definition, parts } = this;
      const right = parts.some((part) => part.scale === "right");
      const least = definition.least || 1e-9;
      const axis = {
        stroke: colour("faint"), font: "11px Inter, system-ui, sans-serif",
        grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, gap: 5,
      };
      const upTo = (room) => (u, low, high) => [0, Math.max((high || 0) * room, least)];
      const logRange = (u, low, high) =>
        known(low) ? uPlot.rangeLog(low, Math.max(high, low * 10), 10, true) : [1e-3, 10];
      const y = definition.log
        ? { distr: 3, range: logRange }
        : { range: definition.top ? () => [0, definition.top] : upTo(definition.room || 1.08) };
      const scales = { x: { time: true, range: timeRange }, y };
      const axes = [
        { ...axis, size: 24, space: 66, values: (u, ticks, at, space, step) =>
          ticks.map((tick) => timeText(tick).slice(0, step < 60 ? 8 : 5)) },
        { ...axis, size: 48, space: 28, values: (u, ticks) => ticks.map((tick) =>
          known(tick) ? definition.tick(tick) : "") },
      ];
      if (definition.log) axes[1].filter = (u, splits) => splits.map(decade);
      if (right) {
        scales.right = { range: upTo(1.08) };
        axes.push({
          ...axis, scale: "right", side: 1, size: 48, grid: { show: false }, space: 28,
          values: (u, ticks) => ticks.map((tick) => definition.tick(tick)),
        });
      }
      const series = parts.map((part, at) => ({
        label: part.label, scale: part.scale || "y", stroke: colour(part.colour),
        // Layers of a stack are areas; an edge on the frame would be cut in half.
        width: at >= stacked ? 1.75 : definition.top ? 0 : 1, points: { show: false },
        dash: part.dashed ? [6, 4] : undefined, spanGaps: at >= stacked,
        fill: at < stacked ? faded(part.colour, 0.6)
          : part.fill ? faded(part.colour, 0.13) : undefined,
      }));
      const bands = [];
      for (let at = 2; at <= stacked; at++) bands.push({ series: [at, at - 1] });
      return {
        width: box.width, height: box.height, padding: [8, right ? 0 : 10, 0, 0],
        legend: { show: false }, scales, axes, bands, series: [{}, ...series],
        cursor: { y: false, sync: { key: SYNC }, drag: { x: false, y: false },
          points: { size: 6, width: 1.5 } },
        hooks: {
          drawClear: definition.marksState ? [(u) => this.drawStates(u)] : [],
          setCursor: [(u) => this.pointed(u.cursor.idx)],
        },
      };
    }

    drawStates(u) {
      const tints = { "falling behind": faded("warn", 0.14), "over budget": faded("bad", 0.16) };
      const { ctx, bbox } = u;
      const { moments } = this;
      ctx.save();
      for (let from = 0; from < moments.length;) {
        let to = from;
        while (to < moments.length && moments[to].state === moments[from].state) to++;
        const tint = tints[moments[from].state];
        if (tint) {
          const end = moments[Math.min(to, moments.length - 1)].at;
          const left = Math.max(u.valToPos(moments[from].at, "x", true), bbox.left);
          const right = Math.min(u.valToPos(end, "x", true), bbox.left + bbox.width);
          ctx.fillStyle = tint;
          if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
        }
        from = to;
      }
      ctx.restore();
    }

    pointed(index) {
      const now = known(index) ? index : null;
      if (now === this.cursor) return;
      this.cursor = now;
      this.showLegend();
      if (this.keys) this.showKeys();
      showClock(now === null ? null : this.moments[now]);
    }

    // The number beside a name: where the cursor is, else now, or of the whole recorded run.
    shown(column) {
      if (this.cursor !== null && this.cursor < column.length) return column[this.cursor];
      if (!recorded) return column.length ? column[column.length - 1] : null;
      const values = column.filter(known);
      if (!values.length) return null;
      if (this.definition.summary === "peak") return Math.max(...values);
      return values.reduce((sum, value) => sum + value, 0) / values.length;
    }

    momentShown() {
      return this.moments[this.cursor === null ? this.moments.length - 1 : this.cursor];
    }

    showLegend() {
      const { definition, parts } = this;
      const moment = this.momentShown();
      const items = [];
      for (const [label, of, format] of definition.facts || []) {
        const value = moment && of(moment);
        if (known(value)) items.push(item(null, label, format(value)));
      }
      let listed = parts.map((part, at) => [part, this.shown(this.values[at])]);
      if (definition.few) {
        const layers = listed.filter(([part]) => !part.dashed);
        const largest = layers.sort((a, b) => (b[1] || 0) - (a[1] || 0));
        const left = new Set(largest.slice(definition.few));
        listed = listed.filter((one) => !left.has(one));
      }
      for (const [part, value] of listed) {
        let text = known(value) ? (part.value || definition.value)(value) : "–";
        const count = part.count && moment && part.count(moment);
        if (known(count)) text += ` (${semistream.format.count(count)})`;
        items.push(item(part, part.label, text));
      }
      this.legend.replaceChildren(...items);
    }

    showKeys() {
      let at = this.cursor === null ? this.moments.length - 1 : this.cursor;
      while (at > 0 && !(this.moments[at] && this.moments[at].hot_keys)) at--;
      const keys = (this.moments[at] && this.moments[at].hot_keys) || [];
      const most = keys.length ? keys[0][1] : 1;
      const items = keys.map(([key, share]) => {
        const line = element("li");
        const bar = element("span", "bar");
        bar.style.width = `${(100 * share) / most}%`;
        const name = element("span", "key", key);
        name.title = key;
        line.append(bar, name, element("span", "share", semistream.format.share(share)));
        return line;
      });
      if (!items.length) items.push(element("li", "none", "no keys sampled yet"));
      this.keys.replaceChildren(...items);
    }
  }

  function item(part, label, text) {
    const made = element("li");
    if (part) {
      const swatch = element("span", "swatch" + (part.dashed ? " dashed" : ""));
      const tone = colour(part.colour);
      if (part.dashed) swatch.style.borderColor = tone;
      else swatch.style.background = tone;
      made.append(swatch);
    }
    made.append(label, element("b", "", text));
    return made;
  }

  const decade = (tick) => (Math.abs(Math.log10(tick) % 1) < 1e-9 ? tick : null);

  function timeText(seconds) {
    return clockText.format(new Date(1000 * seconds));
  }

  function timeRange(u, low, high) {
    if (!known(high)) return [0, 1];
    if (range === "whole") return [low, Math.max(high, low + 1)];
    return [Math.max(Math.min(low, high - LEAST_SPAN_S), high - RECENT_S), high];
  }

  // --- the page ----------------------------------------------------------------------------

  const recorded = byId("recorded") && JSON.parse(byId("recorded").textContent);
  const panels = semistream.panels.map((definition) => new Panel(definition));
  byId("panels").append(...panels.map((panel) => panel.root));
  let range = recorded ? "whole" : "recent";
  let recent = [];
  let whole = [];
  let about = { name: "semistream", facts: {} };

  function showAbout(algorithm) {
    const facts = Object.entries(about.facts).map(([fact, value]) => `${fact} ${value}`);
    const text = [algorithm, ...facts].filter(Boolean).join(" · ");
    byId("name").textContent = about.name;
    if (byId("facts").textContent === text) return;
    byId("facts").textContent = byId("facts").title = text;
  }

  function showState(state, reason) {
    byId("state").dataset.state = state;
    byId("word").textContent = state;
    byId("reason").textContent = reason || "";
    byId("state").title = reason || "";
    document.title = `${state} – ${about.name}`;
  }

  function showClock(moment) {
    const last = recent[recent.length - 1];
    const of = moment || last;
    if (recorded && !moment) {
      const first = whole[0];
      if (!first) return;
      const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium" });
      byId("clock").textContent =
        `${day.format(new Date(1000 * first.at))}, ${timeText(first.at)} to ${timeText(last.at)}`;
    } else if (of) {
      byId("clock").textContent = timeText(of.at);
    }
  }

  function draw() {
    if (document.hidden) return;
    const all = range === "whole" ? whole : recent;
    // Nothing is to be seen of the time in which Spark starts.
    const begun = all.findIndex((moment) => moment.state !== "starting");
    const shown = begun > 0 ? all.slice(begun) : all;
    for (const panel of panels) panel.draw(shown);
    showClock(null);
  }

  function came(moments) {
    recent = recent.concat(moments).slice(-MOST_MOMENTS);
    const last = recent[recent.length - 1];
    showState(last.state, last.reason);
    showAbout(last.algorithm);
    draw();
  }

  async function fetchWhole() {
    if (range !== "whole" || recorded || document.hidden) return;
    try {
      whole = await (await fetch("history.json")).json();
      draw();
    } catch {
      // The stream of events says so when the pipeline cannot be reached.
    }
  }

  function follow() {
    const events = new EventSource("events");
    let fresh = true;
    events.onopen = () => { fresh = true; };
    events.onmessage = (event) => {
      const moments = JSON.parse(event.data);
      if (fresh) recent = []; // a new connection tells all that is recent
      fresh = false;
      came(moments);
    };
    events.addEventListener("end", () => events.close());
    events.onerror = () => {
      const last = recent[recent.length - 1];
      if (last && last.state === "stopped") {
        events.close();
        return;
      }
      const since = last ? ` since ${timeText(last.at)}` : "";
      showState("stopped", `no connection to the pipeline${since}`);
    };
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    style = getComputedStyle(root);
    for (const panel of panels) panel.restyled();
  }

  byId("theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  });

  for (const button of byId("range").querySelectorAll("button")) {
    button.addEventListener("click", () => {
      range = button.dataset.range;
      for (const other of byId("range").querySelectorAll("button")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      if (range === "recent") draw();
      else fetchWhole();
    });
  }

  document.addEventListener("visibilitychange", draw);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  setTheme(dark.matches ? "dark" : "light");

  if (recorded) {
    byId("range").hidden = true;
    byId("save").hidden = true;
    byId("note").hidden = !recorded.note;
    byId("note").textContent = recorded.note;
    recent = whole = recorded.moments;
    about = recorded.about;
    const last = whole[whole.length - 1];
    showAbout(last && last.algorithm);
    if (last) showState(last.state, last.reason);
    else showState("stopped", "nothing was recorded");
    draw();
  } else {
    fetch("about.json").then((answer) => answer.json()).then((answer) => {
      about = answer;
      showAbout(recent.length && recent[recent.length - 1].algorithm);
    });
    follow();
    setInterval(fetchWhole, WHOLE_EVERY_MS);
  }
})();
