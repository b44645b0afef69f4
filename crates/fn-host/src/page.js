"use strict";
// Asks for the counts each second, and shows them. What is shown comes by textContent alone.

const MOST = 500;
const before = new Map();
let shown = null;

const count = (number) => number.toLocaleString("en");
const bytes = (number) =>
  number < 1 << 20 ? `${(number / 1024).toFixed(1)} KiB` : `${(number / (1 << 20)).toFixed(1)} MiB`;
const time = (ns) => {
  if (ns === 0) return "–";
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
};

function cell(text, kind) {
  const made = document.createElement("td");
  made.textContent = text;
  made.className = kind;
  return made;
}

const number = (value, isBad) => cell(count(value), value === 0 ? "n zero" : isBad ? "n bad" : "n");

/// Calls in a second since the last answer.
function rate(key, calls, now) {
  const last = before.get(key);
  before.set(key, { calls, now });
  if (!last || now <= last.now || calls < last.calls) return "–";
  return Math.round(((calls - last.calls) * 1000) / (now - last.now)).toLocaleString("en");
}

const ends = (one) => [
  number(one.errors), number(one.failures, true), number(one.overruns, true), number(one.refused, true),
  number(one.cold),
];

function ofOwner(one) {
  return [
    cell(one.name, ""), number(one.functions), cell(bytes(one.image_bytes), "n"), number(one.calls),
    cell(one.rate, "n"), ...ends(one), cell(time(one.p50_ns), "n"), cell(time(one.p99_ns), "n"),
    cell(time(one.cpu_us * 1000), "n"),
  ];
}

function ofFunction(one) {
  const state = one.state === "banned" ? "bad" : one.state;
  return [
    cell(one.name, ""), cell(one.version, "n"), cell(one.owner, ""), cell(one.share, ""),
    cell(one.state, state), number(one.strikes, true), number(one.calls), cell(one.rate, "n"), ...ends(one),
    cell(time(one.p50_ns), "n"), cell(time(one.p99_ns), "n"), cell(time(one.cpu_us * 1000), "n"),
  ];
}

function fill(table, cells) {
  const rows = cells.map((each) => {
    const row = document.createElement("tr");
    row.append(...each);
    return row;
  });
  document.querySelector(`#${table} tbody`).replaceChildren(...rows);
}

function show() {
  if (!shown) return;
  const wanted = document.getElementById("filter").value.toLowerCase();
  const has = (text) => text.toLowerCase().includes(wanted);
  const found = shown.functions.filter((one) => has(one.name) || has(one.owner));
  fill("owners", shown.owners.map(ofOwner));
  fill("functions", found.slice(0, MOST).map(ofFunction));
  const more = found.length - MOST;
  document.getElementById("more").textContent =
    shown.functions.length === 0 ? "no function is deployed" : found.length === 0 ? "no such function" :
    more > 0 ? `${count(more)} more; filter to see them` : "";
}

async function ask() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch("functions.json");
    if (!answer.ok) throw new Error(`the host answers ${answer.status}`);
    shown = await answer.json();
    const now = performance.now();
    for (const one of shown.owners) one.rate = rate(`owner ${one.name}`, one.calls, now);
    for (const one of shown.functions) one.rate = rate(`function ${one.name}`, one.calls, now);
    state.textContent = `${count(shown.functions.length)} functions, ${new Date().toLocaleTimeString()}`;
    state.className = "";
    show();
  } catch (error) {
    state.textContent = `no answer: ${error.message}; what is shown is old`;
    state.className = "bad";
  }
  setTimeout(ask, 1000);
}

document.getElementById("filter").addEventListener("input", show);
ask();
