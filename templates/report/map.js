"use strict";
// Sorts a roster and draws the heat map of its rows. Everything is set as text or drawn: nothing becomes markup here.
document.addEventListener("filtered", () => { // the first time: the list is whole
  const list = document.getElementById("list");
  const bodies = Array.from(list.tBodies);
  const collator = new Intl.Collator("en", { numeric: true });
  let visible = [];
  let drawing = 0;

  const heads = Array.from(list.tHead.rows[0].cells);
  function sort(column, down) {
    const sign = down ? -1 : 1;
    const numbers = heads[column].classList.contains("num");
    const keys = bodies.map((body, n) => { // the page's own order is worst first
      const text = body.rows[0].cells[column].textContent;
      return !column ? n : numbers ? Number(text.replace("–", "Infinity")) : text;
    });
    const order = bodies.map((_, n) => n).sort((a, b) => {
      const less = column && !numbers ? collator.compare(keys[a], keys[b]) : keys[a] - keys[b];
      return (less ? sign * less : 0) || a - b;
    });
    const place = document.createComment("");
    const y = scrollY;
    list.replaceWith(place); // moved within the page, each row would cost a look at all of its neighbours
    list.append(...order.map((n) => bodies[n]));
    place.replaceWith(list);
    scrollTo({ top: y, behavior: "instant" });
    look();
  }

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const was = head.getAttribute("aria-sort");
      const down = was ? was === "ascending" : head.classList.contains("num");
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(column, down);
      button.focus({ preventScroll: true });
    });
  });
  heads[0].setAttribute("aria-sort", "ascending");
  bodies.forEach((body, n) => { body.place = n; });

  function look() {
    visible = Array.from(list.tBodies).filter((body) => !body.hidden).map((body) => body.place);
    redraw();
  }
  document.addEventListener("filtered", look);

  function unfold(n) {
    if (bodies[n].hidden) document.querySelector("#filters [type=reset]").click();
    list.querySelectorAll("tbody.found").forEach((body) => body.classList.remove("found"));
    bodies[n].classList.add("found");
    const details = bodies[n].querySelector("details");
    if (details) details.open = true;
    bodies[n].scrollIntoView({ block: "center" });
    const target = details ? details.firstElementChild : null;
    if (target) target.focus({ preventScroll: true });
  }

  // --- the heat map ------------------------------------------------------------------------------------------

  const canvas = document.getElementById("canvas");
  const heat = document.getElementById("heat");
  if (!canvas) return;
  const data = JSON.parse(document.getElementById("grid").textContent);
  const names = bodies.map((body) => {
    const note = body.rows[0].cells[1].querySelector("i");
    return body.rows[0].cells[1].textContent.slice(0, note ? -note.textContent.length : undefined).trim();
  });
  const domain = /^[^.]+(\..*)?$/.exec(names[0] || "")?.[1] || ""; // what all names end with says nothing
  const short = names.every((name) => name.endsWith(domain)) ? names.map((name) => name.slice(0, name.length - domain.length)) : names;
  const box = document.getElementById("box");
  const sheet = document.getElementById("sheet");
  const tip = document.getElementById("tip");
  const told = document.getElementById("cell");
  const bad = document.getElementById("bad");
  const fit = document.getElementById("fit");
  const context = canvas.getContext("2d");
  const NAMES = { f: "fail", u: "unknown", w: "warn", p: "pass", s: "skip", x: "unknown", "-": "none" };
  const MEANS = { f: "failed", u: "unknown", w: "warning", p: "passed", s: "not applicable", x: "no answer: unknown", "-": "not checked there" };
  const HEAD = 150; // pixels of the slanted names of checks, and how far the last one leans out
  const SLANT = 80;
  const MOST = 640; // pixels of the map's window
  const SIGNS = { f: "✗", u: "?", w: "!", p: "", s: "–", x: "×", "-": "" };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let columns = [];
  let colours = {};
  let cursor = [0, 0];
  let size = { left: 0, top: 0, width: 14, height: 16 };

  function measure() {
    const narrow = box.clientWidth < 700;
    const left = narrow ? 110 : Math.min(190, 26 + Math.max(...short.map((name) => name.length)) * 7);
    const rows = Math.max(visible.length, 1);
    const height = fit.checked ? Math.min(16, Math.max(2, Math.floor((MOST - HEAD) / rows))) : 16;
    const width = Math.max(18, Math.min(26, Math.floor((box.clientWidth - left - SLANT) / Math.max(columns.length, 1))));
    size = { left, top: HEAD, width, height };
    sheet.style.width = left + columns.length * width + SLANT + "px";
    sheet.style.height = size.top + rows * height + 2 + "px";
    const ratio = window.devicePixelRatio || 1;
    const across = Math.min(box.clientWidth, left + columns.length * width + SLANT);
    const down = Math.min(MOST, size.top + rows * height + 2);
    canvas.style.width = across + "px";
    canvas.style.height = down + "px";
    canvas.width = Math.round(across * ratio);
    canvas.height = Math.round(down * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    colours = { text: colour("text"), muted: colour("muted"), card: colour("card"), accent: colour("accent"), ondark: colour("m-on-dark"), onlight: colour("m-on-light"), ink: colour("m-ink") };
    Object.values(NAMES).forEach((name) => { colours[name] = colour("m-" + name); });
  }

  function redraw() {
    if (drawing || heat === null) return;
    drawing = requestAnimationFrame(() => { drawing = 0; measure(); draw(); });
  }

  function draw() {
    const across = canvas.clientWidth;
    const down = canvas.clientHeight;
    const { left, top, width, height } = size;
    const firstRow = Math.floor(box.scrollTop / height);
    const lastRow = Math.min(visible.length, firstRow + Math.ceil((down - top) / height) + 1);
    const firstColumn = Math.floor(box.scrollLeft / width);
    context.fillStyle = colours.card;
    context.fillRect(0, 0, across, down);
    context.save();
    context.beginPath();
    context.rect(left, top, across - left, down - top);
    context.clip();
    for (let row = firstRow; row < lastRow; row += 1) cells(row, firstColumn, across);
    mark();
    context.restore();
    labels(firstRow, lastRow, firstColumn, across, down);
  }

  function cells(row, firstColumn, across) {
    const { left, top, width, height } = size;
    const y = top + row * height - box.scrollTop;
    const gap = height > 5 ? 1 : 0;
    const letters = data.rows[visible[row]];
    for (let column = firstColumn; column < columns.length; column += 1) {
      const x = left + column * width - box.scrollLeft;
      if (x > across) break;
      const letter = letters[columns[column]];
      context.fillStyle = colours[NAMES[letter]];
      context.fillRect(x, y, width - 1, height - gap);
      if (height >= 12 && SIGNS[letter]) sign(letter, x + (width - 1) / 2, y + height / 2);
    }
  }

  function sign(letter, x, y) {
    context.fillStyle = letter === "w" ? colours.ink : letter === "s" ? colours.muted : colours.ondark;
    context.font = "bold 11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(SIGNS[letter], x, y);
  }

  function mark() {
    if (document.activeElement !== canvas) return;
    const { left, top, width, height } = size;
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    context.strokeRect(left + cursor[1] * width - box.scrollLeft - 1, top + cursor[0] * height - box.scrollTop - 1, width + 1, Math.max(height, 4) + 1);
  }

  function labels(firstRow, lastRow, firstColumn, across, down) {
    const { left, top, width, height } = size;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = colours.text;
    context.save();
    context.beginPath();
    context.rect(0, top, left - 6, down - top);
    context.clip();
    const step = Math.max(1, Math.ceil(14 / height));
    for (let row = Math.ceil(firstRow / step) * step; row < lastRow; row += step) {
      context.fillText(short[visible[row]], 6, top + row * height - box.scrollTop + Math.max(height, 12) / 2);
    }
    context.restore();
    context.save();
    context.beginPath();
    context.rect(left - 4, 0, across - left + 4, top);
    context.clip();
    for (let column = firstColumn; column < columns.length; column += 1) {
      const x = left + column * width - box.scrollLeft + width / 2;
      if (x > across + top) break;
      context.save();
      context.translate(x, top - 6);
      context.rotate(-Math.PI / 3);
      context.fillText(data.columns[columns[column]], 0, 0);
      context.restore();
    }
    context.restore();
  }

  function cellAt(event) {
    const where = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - where.top - size.top + box.scrollTop) / size.height);
    const column = Math.floor((event.clientX - where.left - size.left + box.scrollLeft) / size.width);
    const inside = event.clientY - where.top >= size.top && event.clientX - where.left >= size.left;
    return inside && row < visible.length && column < columns.length ? [row, column] : null;
  }

  function say(row, column) {
    const host = visible[row];
    const check = columns[column];
    return names[host] + ", " + data.columns[check] + ": " + MEANS[data.rows[host][check]];
  }

  function move(rows, across) {
    cursor = [Math.max(0, Math.min(visible.length - 1, cursor[0] + rows)), Math.max(0, Math.min(columns.length - 1, cursor[1] + across))];
    const { left, top, width, height } = size;
    const y = cursor[0] * height;
    const x = cursor[1] * width;
    const room = [canvas.clientHeight - top - height, canvas.clientWidth - left - width];
    if (y < box.scrollTop) box.scrollTop = y;
    if (y > box.scrollTop + room[0]) box.scrollTop = y - room[0];
    if (x < box.scrollLeft) box.scrollLeft = x;
    if (x > box.scrollLeft + room[1]) box.scrollLeft = x - room[1];
    if (visible.length) told.textContent = say(cursor[0], cursor[1]);
    redraw();
  }

  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -1e6], End: [0, 1e6] };
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && visible.length) unfold(visible[cursor[0]]);
    else if (MOVES[event.key]) move(...MOVES[event.key]);
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("mousemove", (event) => {
    const found = cellAt(event);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = say(...found);
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const found = cellAt(event);
    if (found) { cursor = found; unfold(visible[found[0]]); }
  });
  canvas.addEventListener("focus", () => move(0, 0));
  canvas.addEventListener("blur", redraw);
  box.addEventListener("scroll", () => { tip.hidden = true; redraw(); }, { passive: true });
  addEventListener("resize", redraw);
  dark.addEventListener("change", redraw);
  fit.addEventListener("change", redraw);
  bad.addEventListener("change", pick);

  function wrong(n) {
    return data.rows.some((letters) => "fuw".includes(letters[n]));
  }

  function pick() {
    columns = data.columns.map((_, n) => n).filter((n) => !bad.checked || wrong(n));
    cursor = [0, 0];
    redraw();
  }

  fit.checked = bodies.length > 40 && document.body.clientWidth >= 700;
  bad.checked = data.columns.some((_, n) => wrong(n));
  heat.hidden = false;
  pick();
  look();
}, { once: true });
