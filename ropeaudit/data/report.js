
"use strict";
(function () {
  // Sorting, filtering and paging of the table of cases, copying. The page is whole without it.
  var PAGE = 200;
  var root = document.documentElement;
  function find(id) { return document.getElementById(id); }
  root.classList.add("js");

  function copying() {
    var said = find("said"), source = find("markdown");
    function select() {
      var details = source.closest("details");
      details.open = true;
      var range = document.createRange();
      range.selectNodeContents(source);
      var selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
    }
    function fallback() {
      select();
      var done = false;
      try { done = document.execCommand("copy"); } catch (refused) { done = false; }
      if (!done) { source.focus(); }
      said.textContent = done ? "Copied." : "Selected below: press Ctrl+C to copy.";
    }
    find("copy").addEventListener("click", function () {
      said.textContent = "";
      if (navigator.clipboard && navigator.clipboard.writeText) {
        navigator.clipboard.writeText(source.textContent).then(function () { said.textContent = "Copied."; }, fallback);
      } else { fallback(); }
    });
  }

  function plain(text) { return text.toLowerCase().replace(/(\d),(?=\d{3})/g, "$1"); }
  function cases() {
    var table = find("cases");
    if (!table) { return; }
    var body = table.tBodies[0], headers = Array.from(table.tHead.rows[0].cells);
    var rows = Array.from(body.rows).map(function (element, order) {
      return { element: element, order: order, text: plain(element.textContent) };
    });
    var shown = rows, first = 0, size = PAGE;

    function value(row, column) {
      var cell = row.element.cells[column];
      if (!headers[column].classList.contains("n")) { return cell.textContent; }
      var number = cell.dataset.v === undefined ? cell.textContent : cell.dataset.v;
      return number === "inf" ? Infinity : number === "-inf" ? -Infinity : number === "" ? NaN : Number(number);
    }
    function compare(a, b) {
      if (typeof a === "number") { return a - b; }
      return a < b ? -1 : a > b ? 1 : 0;
    }
    function sort(column, direction) {
      rows.forEach(function (row) { row.key = value(row, column); });
      rows.sort(function (a, b) {
        var left = a.key !== a.key, right = b.key !== b.key;
        if (left || right) { return left - right || a.order - b.order; } // nan stands last in both directions
        return (a.key === b.key ? 0 : compare(a.key, b.key)) * direction || a.order - b.order;
      });
    }
    function show() {
      body.replaceChildren.apply(body, shown.slice(first, first + size).map(function (row) { return row.element; }));
      var last = Math.min(first + size, shown.length);
      var count = shown.length.toLocaleString("en") + " of " + rows.length.toLocaleString("en") + " cases";
      if (shown.length > size) { count += ", " + (first + 1).toLocaleString("en") + " to " + last.toLocaleString("en") + " shown"; }
      find("count").textContent = count;
      find("previous").disabled = first === 0;
      find("next").disabled = last >= shown.length;
      find("previous").hidden = find("next").hidden = shown.length <= size;
    }
    function filter() {
      var words = plain(find("filter").value).split(/\s+/).filter(Boolean);
      var boxes = Array.from(find("controls").querySelectorAll("input[name=verdict]"));
      var off = new Set(boxes.filter(function (box) { return !box.checked; }).map(function (box) { return box.value; }));
      shown = rows.filter(function (row) {
        return !off.has(row.element.dataset.verdict) && words.every(function (word) { return row.text.includes(word); });
      });
      first = 0;
      show();
    }
    headers.forEach(function (header, column) {
      header.firstElementChild.addEventListener("click", function () {
        var direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        headers.forEach(function (other) { other.setAttribute("aria-sort", "none"); });
        header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
        sort(column, direction);
        filter();
      });
    });
    var waiting = 0;
    find("filter").addEventListener("input", function () {
      clearTimeout(waiting);
      waiting = setTimeout(filter, rows.length > 2000 ? 120 : 0);
    });
    find("controls").addEventListener("change", filter);
    find("controls").addEventListener("submit", function (event) { event.preventDefault(); filter(); });
    find("previous").addEventListener("click", function () { first = Math.max(0, first - size); show(); });
    find("next").addEventListener("click", function () { first += size; show(); });
    window.addEventListener("beforeprint", function () { first = 0; size = Infinity; show(); });
    window.addEventListener("afterprint", function () { size = PAGE; show(); });
    find("controls").hidden = false;
    filter();
  }

  copying();
  cases();
  find("buttons").hidden = false;
})();
