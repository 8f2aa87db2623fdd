"use strict";
// The page is whole without this: it only hides rows of a list. No text of the document becomes markup here: a long list
// keeps its later rows, as the page's own markup, for browsers without scripts, and they come in once the page is shown.
(function () {
  const later = Array.from(document.querySelectorAll("noscript"));
  function bring() {
    const part = later.shift();
    const holder = document.createElement("template");
    holder.innerHTML = part.textContent;
    document.getElementById("list").append(...holder.content.querySelectorAll("tbody"));
    part.remove();
  }
  function next() {
    const until = performance.now() + 30; // milliseconds, so that the page can be scrolled meanwhile
    while (later.length && performance.now() < until) bring();
    if (later.length) setTimeout(next);
    else begin();
  }
  addEventListener("beforeprint", () => { while (later.length) bring(); });
  if (later.length) addEventListener("load", () => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(next))));
  else document.addEventListener("DOMContentLoaded", begin);

  function begin() {
    const form = document.getElementById("filters");
    if (!form) return;
    const rows = Array.from(document.querySelectorAll("[data-o]"));
    const shown = document.getElementById("shown");
    const boxes = Array.from(form.querySelectorAll("input[type=checkbox]"));
    const selects = Array.from(form.querySelectorAll("select"));
    const words = document.getElementById("words");
    const folds = Array.from(document.querySelectorAll("#checks details"));
    let texts = null;
    let named = null;

    function filter() {
      const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
      const chosen = selects.filter((select) => select.value).map((select) => [select.dataset.f, "|" + select.value + "|"]);
      const text = words.value.trim().toLowerCase();
      if (text && !texts) texts = rows.map((row) => row.textContent.toLowerCase());
      let count = 0;
      rows.forEach((row, n) => {
        const keep = (!named || named.has(n)) && (!wanted.size || wanted.has(row.dataset.o))
          && chosen.every(([key, value]) => row.dataset[key].includes(value)) && (!text || texts[n].includes(text));
        if (row.hidden === keep) row.hidden = !keep;
        if (keep) count += 1;
      });
      document.querySelectorAll("#checks tbody").forEach((body) => {
        body.hidden = !body.querySelector("tr.r:not([hidden])");
      });
      const all = count === rows.length;
      const checks = document.getElementById("checks");
      if (checks) checks.classList.toggle("filtered", !all);
      folds.forEach((fold) => {
        const hit = fold.querySelector("tr.r:not([hidden])") !== null;
        fold.hidden = !hit;
        fold.open = hit && !all;
      });
      const noun = " " + form.dataset.noun + (rows.length === 1 ? "." : "s.");
      shown.textContent = "Shown: " + (all ? "all " : count + " of ") + rows.length + noun;
      document.dispatchEvent(new Event("filtered"));
    }

    function only(outcome, value, places) {
      boxes.forEach((box) => { box.checked = box.value === outcome; });
      selects.forEach((select, n) => { select.value = n ? "" : value; });
      words.value = "";
      named = places;
      filter();
    }

    let typing = 0;
    words.addEventListener("input", (event) => {
      event.stopPropagation();
      clearTimeout(typing);
      if (rows.length > 300) typing = setTimeout(filter, 120); // one filtering for a burst of keys
      else filter();
    });
    form.addEventListener("change", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", (event) => { event.preventDefault(); only("", "", null); });
    document.querySelectorAll("a[data-outcome]").forEach((link) => link.addEventListener("click", () => only(link.dataset.outcome, "", null)));
    document.querySelectorAll("button[data-n]").forEach((button) => {
      button.hidden = false;
      button.addEventListener("click", () => {
        only("", "", new Set(button.dataset.n.trim().split(" ").map(Number)));
        document.getElementById("checklist").scrollIntoView();
      });
    });
    document.querySelectorAll(".picture [data-name]").forEach((part) => {
      const known = Array.from(selects[0].options).some((option) => option.value === part.dataset.name);
      if (!known) return;
      part.style.cursor = "pointer";
      part.addEventListener("click", () => {
        only("", part.dataset.name, null);
        document.getElementById("checklist").scrollIntoView();
      });
    });
    let closed = [];
    window.addEventListener("beforeprint", () => {
      closed = Array.from(document.querySelectorAll("details:not([open])"));
      closed.forEach((one) => { one.open = true; });
    });
    window.addEventListener("afterprint", () => { closed.forEach((one) => { one.open = false; }); });
    form.hidden = false;
    filter();
  }
})();
