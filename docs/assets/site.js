// What the theme leaves to do for screen readers and the keyboard.
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap").forEach((box) => { box.tabIndex = 0; });
  document.querySelectorAll(".md-code__nav, nav[aria-labelledby]").forEach((nav, number) => {
    nav.setAttribute("aria-label", `${nav.getAttribute("aria-label") || nav.querySelector("label")?.innerText.trim() || "Code"} ${number + 1}`);
    nav.removeAttribute("aria-labelledby");
  });
});
