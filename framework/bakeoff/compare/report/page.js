"use strict";
// Arms that can be switched off, sorting, copying.

const keys = [...document.querySelectorAll("[data-toggle]")];
const everys = [...document.querySelectorAll("[data-toggle-all]")];

function shown() {
  for (const key of keys) key.setAttribute("aria-pressed", String(!hidden.has(+key.dataset.toggle)));
  for (const every of everys) every.textContent = hidden.size ? "Show all" : "Hide all";
  charts.forEach((draw) => draw());
}

for (const key of keys)
  key.addEventListener("click", () => {
    const arm = +key.dataset.toggle;
    if (!hidden.delete(arm)) hidden.add(arm);
    shown();
  });

for (const every of everys)
  every.addEventListener("click", () => {
    if (hidden.size) hidden.clear();
    else DATA.arms.forEach((_, arm) => hidden.add(arm));
    shown();
  });

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const valueOf = (row, i) => {
    const cell = row.cells[i];
    return cell.tagName === "TH" ? cell.textContent : Number(cell.dataset.value ?? NaN);
  };
  heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    body.append(...[...body.rows].sort((a, b) => {
      const [u, v] = [valueOf(a, i), valueOf(b, i)];
      if (typeof u === "string") return sign * u.localeCompare(String(v));
      return Number.isNaN(u) || Number.isNaN(v) ? Number.isNaN(u) - Number.isNaN(v) : sign * (u - v);
    }));
  }));
}

for (const button of document.querySelectorAll("[data-copy]"))
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
  });
