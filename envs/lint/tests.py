import ast, copy, importlib, json, os, subprocess, sys

CALLS = json.loads("@CALLS")
out = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
sys.path.append("/work/lib")
folders = 0


class Interrupts:
    def __int__(self):
        raise KeyboardInterrupt


def hides(path):
    """Say what a file does to have code that no linter sees."""
    with open("/work" + path) as f:
        text = f.read()
    if path.endswith(".sh"):
        return sorted({"eval", "exec", "sh", "bash", "dash", "source", "."} & set(text.split()))
    bad = {"exec", "eval", "compile", "globals", "vars", "setattr", "getattr"}
    names = [getattr(n, "id", None) or getattr(n, "attr", None) for n in ast.walk(ast.parse(text))]
    return sorted(n for n in set(names) if isinstance(n, str) and (n in bad or n.startswith("__")))


def has(path):
    """List what a module imports, anywhere, and the functions at its top."""
    if path.endswith(".sh"):
        return []
    with open("/work" + path) as f:
        tree = ast.parse(f.read())
    imports = [a.name for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
    return imports + [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]


def script(call):
    global folders
    folders += 1
    d = "/tmp/tests%d/" % folders
    os.mkdir(d)
    for name, text in call.get("d", {}).items():
        os.makedirs(os.path.dirname(d + name), exist_ok=True)
        with open(d + name, "w") as f:
            f.write(text)
    done = subprocess.run(["/bin/sh", "/work" + call["s"], *call.get("a", [])], cwd=d, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return [done.returncode, done.stdout]


def gone(call):
    if "s" in call:
        with open("/work" + call["s"]) as f:
            return call["g"] in f.read()
    module = importlib.import_module(call["m"])
    return hasattr(module, call["g"]) or call["g"] in getattr(module, call["f"]).__code__.co_varnames


def value(call):
    if "h" in call:
        return [hides(call["h"]), has(call["h"])]
    if "g" in call:
        return gone(call)
    if "s" in call:
        return script(call)
    args = [Interrupts() if a == {"$": 1} else a for a in copy.deepcopy(call.get("a", []))]
    return getattr(importlib.import_module(call["m"]), call["f"])(*args)


def outcome(call):
    try:
        return json.loads(json.dumps(value(call), default=lambda o: type(o).__name__))
    except BaseException as err:
        cause = err.__cause__
        return "raises " + type(err).__name__ + (" from " + type(cause).__name__ if cause else "")


json.dump([outcome(c) for c in CALLS], out, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
out.close()
os._exit(0)
