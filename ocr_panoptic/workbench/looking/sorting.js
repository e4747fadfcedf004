// Sorts a table by the column whose heading is pressed: numbers from the largest, names from A; the
// other way round when it is pressed again. What is no number is below all numbers.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((heading, column, headings) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const text = (row) => row.cells[column].textContent.trim();
      const number = (row) => (isNaN(text(row)) ? -Infinity : Number(text(row)));
      const rows = [...body.rows];
      const numeric = rows.some((row) => number(row) > -Infinity);
      rows.sort((a, b) => (numeric ? number(b) - number(a) || 0 : text(a).localeCompare(text(b))));
      const [first, opposite] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
      const order = heading.getAttribute("aria-sort") === first ? opposite : first;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
      body.append(...(order === first ? rows : rows.reverse()));
    });
  });
}
