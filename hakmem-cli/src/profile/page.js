"use strict";
// What the page does: a timeline to pick a moment from, flame graphs with search and zoom, sorted tables.
(() => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const bytes = (value) => {
    let unit = 0;
    while (Math.abs(value) >= 1023.95 && unit < 4) { value /= 1024; unit++; }
    return (unit ? value.toFixed(1) : Math.round(value)) + " " + units[unit];
  };
  const time = (ns) => {
    const s = ns / 1e9;
    return s < 1 ? Math.round(s * 1e3) + " ms" : s < 120 ? s.toFixed(1) + " s" : s < 7200 ? (s / 60).toFixed(1) + " min" : (s / 3600).toFixed(1) + " h";
  };
  const percent = (part, whole) => (whole > 0 ? (part / whole * 100).toFixed(1) + " %" : "");
  const make = (tag, attributes, ...children) => {
    const svg = ["svg", "path", "line"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  // Functions of one program or library have colours that are close to each other, the same in every profile.
  const hash = (text) => {
    let sum = 7;
    for (const c of text) sum = (sum * 31 + c.codePointAt(0)) >>> 0;
    return (sum ^ (sum >>> 15)) >>> 0;
  };
  const hue = (module, name) => hash(module) % 360 + hash(name) % 50 - 25;
  const ROW = 19;

  class Graph {
    constructor(box, data) {
      this.box = box;
      this.data = data;
      this.plot = box.querySelector(".flames");
      this.said = box.querySelector(".said");
      this.detail = box.querySelector(".detail");
      this.search = box.querySelector("input[type=search]");
      this.reset = box.querySelector(".reset");
      this.search.addEventListener("input", () => this.draw());
      this.reset.addEventListener("click", () => { this.path = []; this.draw(); });
      box.addEventListener("keydown", (event) => {
        if (event.key === "Escape") { this.path = []; this.draw(); }
      });
      this.path = [];
    }

    // Shows these [stack, bytes]; what is zoomed into stays if it is there.
    show(values, title) {
      const root = { name: -1, value: 0, children: new Map() };
      for (const [stack, value] of values) {
        if (value <= 0) continue;
        root.value += value;
        let node = root;
        for (const name of this.data.stacks[stack]) {
          let next = node.children.get(name);
          if (!next) node.children.set(name, next = { name, value: 0, children: new Map() });
          next.value += value;
          node = next;
        }
      }
      this.root = root;
      this.title = title;
      this.draw();
    }

    name(node) { return node.name < 0 ? this.title : this.data.names[node.name][0]; }

    draw() {
      const boxes = [], whole = this.root.value;
      const wanted = this.search.value.trim().toLowerCase();
      const matches = (node) => wanted && node.name >= 0 && this.data.names[node.name].join(" ").toLowerCase().includes(wanted);
      let depth = 0, at = this.root;
      const put = (node, left, width, row, path, above) => {
        const name = this.name(node), [, file, module] = node.name < 0 ? ["", "", ""] : this.data.names[node.name];
        const div = make("button", { type: "button", class: "flame" + (above ? " above" : "") + (matches(node) ? " match" : "") });
        div.style.left = left * 100 + "%";
        div.style.width = width * 100 + "%";
        div.style.top = row * ROW + "px";
        if (node.name >= 0) div.style.setProperty("--hue", hue(module, name));
        if (width > 0.015) div.textContent = name;
        const text = `${name}${file ? " – " + file : ""}${module ? " [" + module + "]" : ""}: ${bytes(node.value)}, ${percent(node.value, whole)}`;
        div.title = text;
        div.setAttribute("aria-label", text);
        div.addEventListener("mouseenter", () => { this.detail.textContent = text; });
        div.addEventListener("focus", () => { this.detail.textContent = text; });
        div.addEventListener("click", () => { this.path = path; this.draw(); });
        boxes.push(div);
        depth = Math.max(depth, row + 1);
      };
      // What leads to where is zoomed in, each over the whole width.
      let row = 0, path = [];
      for (const name of this.path) {
        const next = at.children.get(name);
        if (!next) break;
        put(at, 0, 1, row++, path, true);
        path = [...path, name];
        at = next;
      }
      this.path = path;
      const spread = (node, left, width, row, path) => {
        put(node, left, width, row, path, false);
        const children = [...node.children.values()].sort((a, b) => b.value - a.value);
        for (const child of children) {
          const part = width * child.value / node.value;
          if (part > 0.0008) spread(child, left, part, row + 1, [...path, child.name]);
          left += part;
        }
      };
      if (at.value > 0) spread(at, 0, 1, row, path);
      this.plot.replaceChildren(...boxes);
      this.plot.style.height = Math.max(1, depth) * ROW + "px";
      this.reset.hidden = path.length === 0;
      // Each byte counts once, however often its stack has the name.
      const matched = (node) => {
        if (matches(node)) return node.value;
        let sum = 0;
        for (const child of node.children.values()) sum += matched(child);
        return sum;
      };
      const found = wanted ? matched(this.root) : 0;
      this.said.textContent = whole <= 0 ? "No sampled block."
        : wanted ? `${bytes(found)}, ${percent(found, whole)}, in stacks with “${wanted}”` : `${this.title}: ${bytes(whole)}`;
    }
  }

  class Timeline {
    constructor(box, data, picked) {
      const points = data.timeline, last = points.length - 1;
      this.picked = picked;
      this.points = points;
      const end = Math.max(1, points[last][0]);
      const top = Math.max(1, ...points.map((p) => Math.max(p[1], p.slice(2).reduce((sum, part) => sum + part, 0))));
      const x = (p) => p[0] / end * 1000, y = (value) => 200 - value / top * 195;
      const svg = make("svg", { viewBox: "0 0 1000 200", preserveAspectRatio: "none", "aria-hidden": "true" });
      const below = points.map(() => 0);
      ["live", "cached", "free", "dirty", "metadata", "fresh"].forEach((name, i) => {
        const floor = points.map((p, k) => `${x(p)},${y(below[k])}`).reverse();
        points.forEach((p, k) => { below[k] += p[i + 2]; });
        const roof = points.map((p, k) => `${x(p)},${y(below[k])}`);
        svg.append(make("path", { class: "area " + name, d: "M" + [...roof, ...floor].join("L") + "Z" }));
      });
      svg.append(make("path", { class: "resident", d: "M" + points.map((p) => `${x(p)},${y(p[1])}`).join("L") }));
      this.cursor = make("line", { class: "cursor", y1: 0, y2: 200 });
      svg.append(this.cursor);
      this.x = x;
      const plot = box.querySelector(".plot");
      plot.append(svg, make("span", { class: "top" }, bytes(top)), make("span", { class: "end" }, time(end)));
      this.legend = box.querySelector(".legend");
      this.slider = box.querySelector("input[type=range]");
      this.slider.max = last;
      this.slider.value = last;
      const nearest = (event) => {
        const frame = svg.getBoundingClientRect();
        const wanted = (event.clientX - frame.left) / frame.width * end;
        let best = 0;
        points.forEach((p, i) => { if (Math.abs(p[0] - wanted) < Math.abs(points[best][0] - wanted)) best = i; });
        return best;
      };
      svg.addEventListener("mousemove", (event) => this.tell(nearest(event)));
      svg.addEventListener("mouseleave", () => this.tell(this.at));
      svg.addEventListener("click", (event) => this.pick(nearest(event)));
      this.slider.addEventListener("input", () => this.pick(Number(this.slider.value)));
      this.move(data.moment);
    }

    tell(i) {
      const p = this.points[i];
      this.legend.querySelectorAll("[data-column]").forEach((item) => {
        const column = Number(item.dataset.column);
        item.querySelector("b").textContent = column ? bytes(p[column]) : time(p[0]);
      });
    }

    move(i) {
      this.at = i;
      this.slider.value = i;
      const x = this.x(this.points[i]);
      this.cursor.setAttribute("x1", x);
      this.cursor.setAttribute("x2", x);
      this.tell(i);
      this.slider.setAttribute("aria-valuetext", time(this.points[i][0]));
    }

    pick(i) {
      this.move(i);
      this.picked(i);
    }
  }

  for (const article of document.querySelectorAll("article.process")) {
    const data = JSON.parse(article.querySelector("script[type='application/json']").textContent);
    const graph = new Graph(article.querySelector(".graph"), data);
    const tabs = [...article.querySelectorAll("[role=tab]")];
    const table = article.querySelector("table.sites");
    let moment = data.moment;
    const live = (until) => {
      const values = new Map();
      data.live.slice(0, until + 1).forEach((changes) => changes.forEach(([stack, value]) => values.set(stack, value)));
      return [...values];
    };
    const sort = (key) => {
      if (!table) return;
      table.querySelectorAll("th[data-key]").forEach((head) => {
        head.setAttribute("aria-sort", head.dataset.key === key ? "descending" : "none");
      });
      const body = table.tBodies[0];
      const value = (row) => Number(row.dataset[key] || 0);
      body.append(...[...body.rows].sort((a, b) => value(b) - value(a)));
    };
    const show = (tab) => {
      tabs.forEach((one) => {
        one.setAttribute("aria-selected", String(one === tab));
        one.tabIndex = one === tab ? 0 : -1;
      });
      const what = tab.dataset.what;
      if (what === "live") {
        const last = moment === data.timeline.length - 1;
        graph.show(live(moment), "held " + (last ? "at the end" : "at " + time(data.timeline[moment][0])));
      } else {
        graph.show(data[what], what === "peak" ? "held at the peak" : "allocated");
      }
      sort(what);
    };
    tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => show(tab));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) { const next = tabs[(i + step + tabs.length) % tabs.length]; next.focus(); show(next); }
      });
    });
    const timeline = new Timeline(article.querySelector(".timeline"), data, (i) => { moment = i; show(tabs[0]); });
    // A program that frees everything on its way out is looked at before that.
    const sum = (values) => values.reduce((total, [, value]) => total + value, 0);
    if (moment > 0 && moment === data.timeline.length - 1 && sum(live(moment)) < sum(data.peak) / 20) timeline.move(--moment);
    if (table) table.querySelectorAll("th[data-key] button").forEach((button) => {
      button.addEventListener("click", () => sort(button.parentElement.dataset.key));
    });
    article.querySelectorAll("[data-search]").forEach((button) => button.addEventListener("click", () => {
      graph.search.value = button.dataset.search;
      show(tabs[0]);
      graph.box.scrollIntoView({ block: "start" });
    }));
    show(tabs[0]);
  }
})();
