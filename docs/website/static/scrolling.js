// What is wider than its box can be scrolled by the keyboard too: it can be reached, and says what it is.
(() => {
  const boxes = () => document.querySelectorAll("article .table-wrapper, article pre");
  const look = () => {
    for (const box of boxes()) {
      const scrolls = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
      if (!scrolls) {
        box.removeAttribute("tabindex");
        continue;
      }
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", box.tagName === "PRE" ? "Code, wider than the page" : "Table, wider than the page");
    }
  };
  window.addEventListener("DOMContentLoaded", look);
  window.addEventListener("load", look);
  window.addEventListener("resize", look);
})();
