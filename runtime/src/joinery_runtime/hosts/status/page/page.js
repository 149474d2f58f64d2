// The page of one job. It asks the driver for `status` and `history` and draws them; all text goes in as text.

const POLL_MS = 2000;
const PALETTE = 7;
const KEPT = 2000; // samples in the page: a driver hands out at most 660, and the next one its own
const byId = (id) => document.getElementById(id);

// --- numbers as words ------------------------------------------------------------------------------------------------

const whole = (n) => (n == null ? "–" : Math.round(n).toLocaleString("en"));

function short(n) {
  if (n == null) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(n) >= size) return `${+(n / size).toPrecision(3)} ${unit}`;
  }
  return `${+n.toPrecision(3)}`;
}

function bytes(n) {
  if (n == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  for (; n >= 1024 && power < units.length - 1; power++) n /= 1024;
  return `${+n.toPrecision(3)} ${units[power]}`;
}

// As jobs, `kubectl` and the log write them, rounded; those have no days, but nobody reads thousands of hours.
function duration(ms) {
  if (ms == null) return "–";
  // Rounded before they are divided: the rest would be 60 otherwise.
  const [rounded, s, min] = [1, 1000, 60_000].map((unit) => Math.round(ms / unit));
  if (rounded === 0) return "0s";
  if (rounded < 1000) return `${rounded}ms`;
  if (ms < 59_950) return `${+(ms / 1000).toPrecision(3)}s`;
  if (s < 3600) return units(s, "m", "s");
  if (min < 2880) return units(min, "h", "m");
  return `${short(ms / 86_400_000)} days`;
}

const units = (n, large, small) => `${Math.floor(n / 60)}${large}${n % 60 ? `${n % 60}${small}` : ""}`;

const UNIT_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };
const inMs = (text) => [...text.matchAll(/(\d+)(ms|s|m|h)/g)].reduce((sum, [, n, unit]) => sum + n * UNIT_MS[unit], 0);

// Of 24 hours wherever the browser is: axes have no room for am and pm.
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const hourAndMinute = (s) => clock(s * 1000).slice(0, 5);
const rate = (n) => (n != null && n < 10 ? short(n) : whole(n));

// --- elements --------------------------------------------------------------------------------------------------------

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child != null).map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function facts(pairs) {
  const list = element("dl");
  for (const [name, value] of pairs) {
    if (value != null) list.append(element("div", "", element("dt", "", name), element("dd", "", value)));
  }
  return list;
}

function table(title, heads, rows, note) {
  if (!rows.length) return null;
  const head = element("tr", "", ...heads.map((text, i) => element("th", rows[0][i].className ?? "", text)));
  const body = rows.map((row) =>
    element("tr", "", ...row.map((cell) => (cell instanceof Node ? cell : element("td", "", cell)))));
  const made = element("table", "", element("thead", "", head), element("tbody", "", ...body));
  return element("section", "", element("h2", "", title), note ? element("p", "quiet", note) : null, made);
}

const words = (text) => element("td", "words", text);
const named = (text) => element("td", "name", text);

// --- what was told ---------------------------------------------------------------------------------------------------

let status = null; // the newest answer of each
let history = null;
let samples = [];
let epochs = [];
let silentSince = null;
let seconds = 900;

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

const lastOf = (list) => (list.length ? list[list.length - 1].at : 0);

async function poll() {
  try {
    const [told, past] = await Promise.all([ask("status"), ask(`history?since=${lastOf(samples)}`)]);
    [status, history, silentSince] = [told, past, null];
    samples = [...samples, ...past.samples.filter((each) => each.at > lastOf(samples))].slice(-KEPT);
    epochs = [...epochs, ...past.epochs.filter((each) => each.at > lastOf(epochs))].slice(-100);
  } catch {
    silentSince ??= Date.now();
  }
  draw();
  setTimeout(poll, POLL_MS);
}

// --- the head --------------------------------------------------------------------------------------------------------

const late = () => status.inputs.some((input) => input.lateWarning);
const ended = () => status.inputs.length > 0 && status.inputs.every((input) => input.ended);

function standing() {
  if (silentSince != null) return status && ended() ? ["Ended", ""] : ["No answer", "bad"];
  if (status.waiting) return [`Waiting for the ${status.waiting.system}`, "wait"];
  if (status.migrated != null) return ["Migrating", "wait"];
  if (!status.ready) return ["Starting", "wait"];
  if (ended()) return late() ? ["All inputs read, rows were dropped as late", "wait"] : ["All inputs read", "good"];
  if (late()) return ["Running, rows are dropped as late", "wait"];
  return ["Running", "good"];
}

function notices() {
  const found = [];
  if (silentSince != null && !(status && ended())) {
    found.push(["bad", `The driver has not answered since ${clock(silentSince)}. The figures are of before.`]);
  }
  if (silentSince != null && status && ended()) {
    found.push(["", "The job has read its inputs to the end, and its driver has gone. The figures are its last ones."]);
  }
  if (!status) return found;
  if (status.waiting) found.push(["", `Since ${clock(Date.parse(status.waiting.since))}: ${status.waiting.reason}`]);
  else if (status.lastError) found.push(["", status.lastError]);
  for (const input of status.inputs) if (input.lateWarning) found.push(["", input.lateWarning]);
  for (const input of status.inputs) if (input.warning) found.push(["", `${input.name}: ${input.warning}`]);
  for (const { name, reason } of status.paused) found.push(["", `Input ${name} is paused: ${reason}`]);
  for (const { step, key, rows } of status.tooHot) {
    found.push(["", `Step ${step} keeps ${whole(rows)} rows of the key ${key}, more than limits.hotKeyWarning`]);
  }
  return found;
}

function drawHead() {
  const [text, tone] = standing();
  const state = byId("state");
  state.textContent = text;
  state.className = `state ${tone}`;
  byId("notices").replaceChildren(...notices().map(([tone, text]) => element("li", tone, text)));
  if (!history) return;
  document.title = `${history.job} – Joinery`;
  byId("job").textContent = history.job;
  const facts = [history.title, status.epoch != null && `epoch ${whole(status.epoch)}`,
    status.jobGeneration != null && `generation ${status.jobGeneration}`, status.revision && `revision ${status.revision}`];
  byId("title").textContent = facts.filter(Boolean).join(" · ");
  byId("explanation").textContent = history.explanation;
}

// --- the flow --------------------------------------------------------------------------------------------------------

function inputCard(input) {
  const source = history.sources.find((each) => each.name === input.name);
  const paused = status.paused.some((each) => each.name === input.name);
  const tag = input.ended ? ["read to its end", "tag done"] : paused ? ["paused", "tag"] : input.idle ? ["idle", "tag done"] : null;
  const behind = samples.length ? samples[samples.length - 1].behind[input.name] : null;
  return element("div", "card",
    element("h2", "", input.name, tag && element("span", tag[1], tag[0])),
    element("p", "quiet", source ? source.source : ""),
    facts([
      ["records/s", rate(newest(rates((sample) => sample.rowsIn[input.name] ?? 0)))], ["lag in records", whole(input.lag)],
      ["watermark behind", input.ended ? null : duration(behind)],
      ["late rows, in all", input.late ? whole(input.late) : null],
      ["late by up to", input.lateBy ? duration(inMs(input.lateBy)) : null],
    ]));
}

function drawFlow() {
  byId("inputs").replaceChildren(...status.inputs.map(inputCard));
  const rows = status.sides.reduce((sum, side) => sum + side.rows, 0);
  byId("join").replaceChildren(
    element("h2", "", history.title ? history.title.replace(/^an? /, "") : "join"),
    facts([
      ["rows kept", whole(rows)], ["state", bytes(status.stateBytes)],
      ["rows out per record in, newest epoch", status.amplification == null ? null : short(status.amplification)],
      ["epochs run on", status.runsOn], ["executors", status.executors], ["savepoint", status.lastSavepoint ? status.lastSavepoint.name : null],
    ]));
  byId("output").replaceChildren(
    element("h2", "", "output"),
    element("p", "quiet", history.output),
    facts([
      ["rows/s", rate(newest(rates((sample) => sample.rowsOut)))], ["rows out, in all", whole(status.rowsOut)],
      ["of these not visible yet", status.rowsHeld ? whole(status.rowsHeld) : null],
      ["records in, in all", whole(status.rowsIn)],
    ]));
}

// --- charts ----------------------------------------------------------------------------------------------------------

function shown() {
  const from = samples.length ? samples[samples.length - 1].at - seconds * 1000 : 0;
  return samples.filter((sample) => sample.at >= from);
}

// Totals move once an epoch, which may be longer than the time between two samples: a rate is that of the whole time since
// the total last moved. After the newest move nothing is known for as long as the last one took, and then that nothing comes.
function ratesOf(all, total) {
  const found = all.map(() => null);
  let moved = 0;
  let took = 0;
  for (let i = 1; i < all.length; i++) {
    const [before, after] = [total(all[moved]), total(all[i])];
    if (before == null || after == null || after < before) moved = i;
    else if (after > before) {
      took = all[i].at - all[moved].at;
      found.fill((after - before) * 1000 / took, moved + 1, i + 1);
      moved = i;
    } else if (all[i].at - all[moved].at > took) found[i] = 0;
  }
  return found;
}

const rates = (total) => ratesOf(shown(), total);
const newest = (of) => of.filter((value) => value != null).pop();  // cards show the charts' own numbers

const names = () => history.sources.map((source) => source.name);
const values = (of) => shown().map((sample) => of(sample) ?? null);
const parts = () => [...new Set(samples.flatMap((sample) => Object.keys(sample.state)))];

// A side as a person calls it: with its inputs, and with the step where there are several.
function sideName(side, sides) {
  const many = new Set(sides.map((each) => each.step)).size > 1;
  return `${many ? `step ${side.step}, ` : ""}${side.side} (${side.inputs.join(", ")})`;
}

// A part of the state is called `left` in the first step, and `left.2` in the second.
function partName(part, sides) {
  const [name, step] = part.split(".");
  const side = sides.find((each) => each.side === name && each.step === Number(step ?? 1));
  return side ? sideName(side, sides) : part;
}

const sum = (map) => Object.values(map).reduce((a, b) => a + b, 0);

const OVER_TIME = [
  ["Records per second", short, () => [
    ...names().map((name) => [name, rates((sample) => sample.rowsIn[name] ?? 0)]),
    ["rows out", rates((sample) => sample.rowsOut)]]],
  ["Lag: records that are not read yet", short, () => names().map((name) => [name, values((sample) => sample.lag[name])])],
  ["Watermark behind the clock", duration, () => names().map((name) => [name, values((sample) => sample.behind[name])])],
  ["State", bytes, () => parts().map((part) => [partName(part, status.sides), values((sample) => sample.state[part])])],
  ["Rows out per record in", short, () => {
    const [out, into] = [rates((sample) => sample.rowsOut), rates((sample) => sum(sample.rowsIn))];
    return [["rows out per record in", out.map((rate, i) => (rate != null && into[i] ? rate / into[i] : null))]];
  }],
  ["Late rows and dead letters per second", short, () => [
    ["late rows", rates((sample) => sample.late)], ["dead letters", rates((sample) => sample.deadLetters)]]],
];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function axis(format) {
  return {
    stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 },
    ...(format ? { values: (_, splits) => splits.map(format), size: 86 } : {}),
    ...(format === hourAndMinute ? { incrs: [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360].map((min) => 60 * min), size: 30 } : {}),
    ...(format === bytes ? { incrs: Array.from({ length: 50 }, (_, power) => 2 ** power) } : {}),
  };
}

class Chart {
  constructor(title) {
    this.place = element("div");
    this.figure = element("figure", "", element("figcaption", "", title), this.place);
    this.plot = null;
    new ResizeObserver(() => this.plot?.setSize({ width: this.place.clientWidth, height: 190 })).observe(this.place);
  }

  // `made` makes uPlot's options; they are made anew when `kind` says that the old ones do not fit.
  draw(kind, data, made) {
    if (data.slice(1).every((line) => line.every((value) => value == null))) {
      this.forget();
      this.place.replaceChildren(element("p", "none", "No values"));
      return;
    }
    if (this.plot && this.kind === kind) {
      this.plot.setData(data);
    } else {
      this.forget();
      this.place.replaceChildren();
      this.kind = kind;
      this.plot = new uPlot({ width: this.place.clientWidth, height: 190, ...made() }, data, this.place);
    }
    if (this.plot.cursor.idx == null) this.plot.setLegend({ idx: data[0].length - 1 });
  }

  forget() {
    this.plot?.destroy();
    this.plot = null;
  }
}

const overTime = OVER_TIME.map(([title]) => new Chart(title));
const epochChart = new Chart("Newest epochs");
byId("charts").append(...overTime.map((chart) => chart.figure), epochChart.figure);

const fromZero = { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } };

// Hours and minutes are on the axis, so it is two minutes long at least. Of one sample uPlot would make a day.
const TWO_MINUTES = 120;
const ofTimes = (plot, from, to) => (plot.data[0].length > 1 ? [Math.min(from, to - TWO_MINUTES), to] : [from - TWO_MINUTES, from]);

function drawCharts() {
  const times = shown().map((sample) => sample.at / 1000);
  OVER_TIME.forEach(([, format, of], i) => {
    const lines = of();
    overTime[i].draw(lines.map(([name]) => name).join("\n"), [times, ...lines.map(([, line]) => line)], () => ({
      cursor: { sync: { key: "time" } },
      scales: { x: { range: ofTimes }, ...fromZero },
      axes: [axis(hourAndMinute), axis(format)],
      series: [{ label: "at", value: (_, value) => (value == null ? "–" : clock(value * 1000)) }, ...lines.map(([name], k) => ({
        label: name, stroke: colour(`c${k % PALETTE}`), width: 1.5, value: (_, value) => format(value),
      }))],
    }));
  });
  drawEpochs();
}

function drawEpochs() {
  const steps = [["planned", "planMs"], ["run", "runMs"], ["committed", "commitMs"]];
  const upTo = (k) => epochs.map((epoch) => steps.slice(0, k + 1).reduce((total, [, field]) => total + epoch[field], 0));
  const bars = uPlot.paths.bars({ size: [0.8, 40] });
  // The tallest bars first: each next one covers its own part of them.
  const order = [2, 1, 0];
  epochChart.draw("epochs", [epochs.map((epoch) => epoch.epoch), ...order.map(upTo)], () => ({
    scales: { x: { time: false }, ...fromZero },
    axes: [{ ...axis(whole), size: 50, incrs: [1, 2, 5, 10, 20, 50] }, axis(duration)],
    series: [{ label: "epoch", value: (_, value) => whole(value) }, ...order.map((k) => ({
      label: steps[k][0], stroke: colour(`c${k}`), fill: colour(`c${k}`), width: 0, paths: bars, points: { show: false },
      value: (_, __, ___, i) => (i == null ? "–" : duration(epochs[i]?.[steps[k][1]])),
    }))],
  }));
}

// --- tables ----------------------------------------------------------------------------------------------------------

// Reasons as docs/semantics.md has them (T10), and what is counted beside them.
const REASONS = {
  late: "too far behind the watermark",
  null_key: "NULL or NaN in the key",
  filtered: "where is not true",
  expired: "a version of a table that came after its horizon",
  closed: "inside a session that reached maxDuration",
  failed: "a condition or column cannot be computed for the pair",
  future: "event time too far ahead (watermark.maxFuture)",
  history: "on the wrong side of the history's end",
  deletion: "a deleted row of a stream",
  tombstone: "repeats the deletion before it",
  "dead letter": "cannot be used; deadLetter has it with the reason",
};

function drawTables() {
  const holding = new Set();
  const partitions = history.partitions.map((each) => {
    const holds = !each.idle && !holding.has(each.input);
    if (!each.idle) holding.add(each.input);
    const said = each.idle ? "idle: not counted" : each.behind == null ? "has shown no row: no watermark yet" : holds ? "sets the watermark" : "";
    return [named(each.partition), named(each.input), duration(each.behind), words(said)];
  });
  const dropped = Object.entries(history.dropped).flatMap(([input, counts]) =>
    Object.entries(counts).filter(([, count]) => count).map(([reason, count]) => [
      named(input), words(REASONS[reason] ? `${reason}: ${REASONS[reason]}` : reason), whole(count)]));
  byId("tables").replaceChildren(...[
    table("State by side", ["side", "rows", "bytes", "stored", "expired", "looked up", "matches", "most rows"],
      status.sides.map((side) => [
        named(sideName(side, status.sides)), whole(side.rows), bytes(side.bytes),
        whole(side.stored), whole(side.expired), whole(side.lookups), whole(side.matches), whole(side.peak)]),
      "Rows and bytes are kept now; the others count since the job's state began. Expired rows have left the state."),
    table("Partitions furthest behind", ["partition", "input", "behind the clock", ""], partitions),
    table("Keys with the most rows", ["key", "rows"], status.hottestKeys.map((hot) => [words(hot.key), whole(hot.rows)]),
      "Rows in the state, counted at the newest checkpoint."),
    table("Rows that were left out", ["input", "reason", "rows"], dropped, "Counted since the job's state began."),
    table("Scaling", ["at", "shards", "executors", "why"], [...history.scalings].reverse().map((each) => [
      clock(Date.parse(each.time)), each.shards, each.executors ?? "–", words(each.reason)])),
    table("Newest epochs", ["epoch", "at", "records in", "rows out", "ran on", "planned", "run", "committed"],
      epochs.slice(-10).reverse().map((epoch) => [
        whole(epoch.epoch), clock(epoch.at), whole(epoch.rowsIn), whole(epoch.rowsOut), words(epoch.runsOn),
        duration(epoch.planMs), duration(epoch.runMs), duration(epoch.commitMs)]),
      "The last three columns say how long that took."),
  ].filter(Boolean));
}

// --- all of it -------------------------------------------------------------------------------------------------------

function draw() {
  drawHead();
  if (!history) return;
  drawFlow();
  drawCharts();
  drawTables();
}

byId("range").addEventListener("click", (event) => {
  if (!event.target.dataset.seconds) return;
  seconds = Number(event.target.dataset.seconds);
  for (const button of byId("range").children) button.setAttribute("aria-pressed", String(button === event.target));
  if (history) draw();
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of [...overTime, epochChart]) chart.forget();
  if (history) draw();
});

poll();
