"use strict";
// The page is whole without this: it only hides rows of the checklist. No text of the document becomes markup here.
(function () {
  const form = document.getElementById("filters");
  if (!form) return;
  const rows = Array.from(document.querySelectorAll("#checks tr.r"));
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const shown = document.getElementById("shown");
  const boxes = Array.from(form.querySelectorAll("input[type=checkbox]"));
  const device = document.getElementById("device");
  const words = document.getElementById("words");
  const folds = Array.from(document.querySelectorAll("#checks details"));

  function filter() {
    const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const every = wanted.size === 0;
    const subject = device.value;
    const text = words.value.trim().toLowerCase();
    let count = 0;
    rows.forEach((row, n) => {
      const one = row.parentNode.dataset.outcome;
      const keep = (every || wanted.has(one)) && (!subject || row.dataset.s === subject) && (!text || texts[n].includes(text));
      row.hidden = !keep;
      if (keep) count += 1;
    });
    document.querySelectorAll("#checks tbody").forEach((body) => {
      body.hidden = !body.querySelector("tr.r:not([hidden])");
    });
    const all = count === rows.length;
    folds.forEach((fold) => {
      const hit = fold.querySelector("tr.r:not([hidden])") !== null;
      fold.hidden = !hit;
      fold.open = hit && !all;
    });
    shown.textContent = all ? "All " + count + " results are listed." : count + " of " + rows.length + " results are shown.";
  }

  function only(outcome, subject) {
    boxes.forEach((box) => { box.checked = box.value === outcome; });
    device.value = subject;
    words.value = "";
    filter();
  }

  form.addEventListener("input", filter);
  form.addEventListener("change", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => { event.preventDefault(); only("", ""); });
  document.querySelectorAll("a[data-outcome]").forEach((link) => link.addEventListener("click", () => only(link.dataset.outcome, "")));
  document.querySelectorAll(".picture [data-name]").forEach((part) => {
    const known = Array.from(device.options).some((option) => option.value === part.dataset.name);
    if (!known) return;
    part.style.cursor = "pointer";
    part.addEventListener("click", () => {
      only("", part.dataset.name);
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
})();
