"""Lets a torch that was built for graphics cards load where their libraries are not installed.

Each library that torch was linked with and that cannot be loaded gets a stand-in with the functions that torch expects of it. They report
that there is no device, so torch computes on the CPU. Needs gcc and readelf.
"""

import ctypes
import importlib.util
import pathlib
import re
import subprocess
import tempfile

NO_DEVICE = 100  # cudaErrorNoDevice


def readelf(option, path):
    return subprocess.run(["readelf", option, "-W", path], check=True, capture_output=True, text=True).stdout


def loads(library):
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def source(functions):
    lines = ['static const char none[] = "no device";']
    for name in sorted(functions):
        value = "(long)none" if re.search("String|ErrorName", name) else str(NO_DEVICE)
        lines.append(f"long {name}(void) {{ return {value}; }}")
    return "\n".join(lines) + "\n"


def build(library, functions, versioned):
    """Functions that are versioned have the library's own name for a version, as the vendor does it."""
    with tempfile.TemporaryDirectory() as tmp:
        code, version = pathlib.Path(tmp, "stub.c"), pathlib.Path(tmp, "stub.map")
        code.write_text(source(functions))
        command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", library, f"-Wl,-soname,{library.name}", code]
        if versioned:
            version.write_text(f"{library.name} {{ global: {' '.join(name + ';' for name in sorted(versioned))} }};\n")
            command.append(f"-Wl,--version-script={version}")
        subprocess.run(command, check=True)


def main():
    package = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    folder = package / "lib"
    present = sorted(folder.glob("*.so*"))
    needed, versioned, bare = set(), {}, set()
    for path in present:
        needed.update(re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl).*)\]", readelf("-d", path)))
        for name, library in re.findall(r" UND (\w+)(?:@(lib\S+))?", readelf("--dyn-syms", path)):
            if library:
                versioned.setdefault(library, set()).add(name)
            elif re.match("cu|nv|nccl|__cu|__nv", name):
                bare.add(name)
    missing = sorted(n for n in needed - {p.name for p in present} if not loads(n))
    for library in missing:
        functions = versioned.get(library, set())
        build(folder / library, functions | bare if library == missing[0] else functions, functions)
        print(f"{library}: {len(functions)} functions")
    # Or the next pip install would fetch the libraries after all.
    for metadata in package.parent.glob("torch-*.dist-info/METADATA"):
        lines = metadata.read_text(encoding="utf-8").splitlines(keepends=True)
        metadata.write_text("".join(n for n in lines if not re.match("Requires-Dist: (cuda-|nvidia-|triton)", n)), encoding="utf-8")


if __name__ == "__main__":
    main()
