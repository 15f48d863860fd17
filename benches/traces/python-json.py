"""JSON back and forth, dictionaries, sorting and counting of words."""
import json, collections
rows = [{"id": i, "name": f"user-{i % 97}", "tags": [f"t{j}" for j in range(i % 7)], "score": i * 0.5} for i in range(800)]
text = json.dumps(rows)
back = json.loads(text)
by_name = collections.defaultdict(list)
for row in back:
    by_name[row["name"]].append(row)
top = sorted(by_name.items(), key=lambda item: -sum(row["score"] for row in item[1]))[:10]
words = collections.Counter(text.replace('"', " ").split())
print(len(text), top[0][0], words.most_common(1)[0][0])
