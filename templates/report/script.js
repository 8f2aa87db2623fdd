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
    shown.textContent = count === rows.length ? "All " + count + " results are shown." : count + " of " + rows.length + " results are shown.";
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
  form.hidden = false;
  filter();
})();
