"""`atoll image`: pulls, lists, shows, pushes, builds and removes container images."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.images import get_image, store
from atoll.images.dockerfile import build_dockerfile
from atoll.images.obtain import BUILD_CACHE, name_image
from atoll.images.push import push_image
from atoll.images.reference import DEFAULT_FOLDER, DEFAULT_HOST, RegistryReference, parse
from atoll.text.amounts import ago_text, printable, size_text

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.images.image import HeldImage, Image
    from atoll.images.store import Record

SHORT, LEAST = 12, 4
DAY_SECONDS = 24 * 3600


def command(args: Namespace) -> int:
    """Do what was asked; return the exit code."""
    actions = {
        "pull": pull,
        "list": list_all,
        "show": show,
        "push": push,
        "remove": remove,
        "prune": prune,
        "build": build,
    }
    return actions[args.action](args)


def pull(args: Namespace) -> int:
    """Get images into the store; print their digests."""
    if args.tag and len(args.image) > 1:
        raise ConfigError("--tag is for one image")
    facts = []
    for reference in args.image:
        held = get_image(reference, refresh=True, architecture=args.arch)
        if args.tag:
            held = name_image(held, args.tag)
        image = held.image
        facts.append({"image": reference, "digest": image.digest, "size": image.size})
        if not args.json:
            print(image.digest)
            layers = f"{len(image.layers)} layer{'s' if len(image.layers) != 1 else ''}"
            say = f"{args.tag or reference} is ready: {size_text(image.size)}, {layers}"
            print(f"atoll: {say}", file=sys.stderr)
        held.close()
    if args.json:
        print(json.dumps(facts))
    return 0


def list_all(args: Namespace) -> int:
    """Print one line for each image, last used first."""
    records, names = store.everything(), store.names()
    if args.json:
        print(json.dumps([_facts(record, names) for record in records]))
        return 0
    if not records:
        print("atoll: no images. Type: atoll image pull python:3.12-slim", file=sys.stderr)
        return 0
    print(f"{'IMAGE':40} {'DIGEST':{SHORT}} {'ARCH':8} {'SIZE':>9}  USED")
    for record in records:
        used = ago_text(time.time() - record.used)
        rest = (
            f"{record.hex[:SHORT]} {record.architecture[:8]:8} {size_text(record.size):>9}  {used}"
        )
        for name in _names_of(record, names) or ["-"]:
            print(f"{name:40} {rest}")
    return 0


def show(args: Namespace) -> int:
    """Print an image's parts and configuration."""
    record, names = _find(args.image), store.names()
    image = store.load(record, args.image)
    if args.json:
        print(json.dumps(_facts(record, names) | _config(image)))
        return 0
    print(f"image       {', '.join(_names_of(record, names)) or 'no name'}")
    print(f"digest      {record.digest}")
    print(f"size        {size_text(record.size)} in {store.root()}")
    print(f"used        {ago_text(time.time() - record.used)}")
    for name, value in _config(image).items():
        text = value if isinstance(value, str) else json.dumps(value)
        print(f"{name:11} {printable(text)}")
    for layer, path in zip(record.layers, image.layers, strict=True):
        print(f"layer       {layer.blob[7 : 7 + SHORT]} {size_text(layer.unpacked):>9}  {path}")
    return 0


def push(args: Namespace) -> int:
    """Send an image to a registry; print its digest."""
    record = _find(args.image)
    held = store.hold(record.digest, args.image)
    if held is None:
        raise ConfigError(f"{args.image!r} was removed meanwhile")
    print(push_image(held.image, args.target or args.image))
    held.close()
    return 0


def remove(args: Namespace) -> int:
    """Delete images; the exit code is 1 if one of them is in use."""
    code = 0
    for name in args.image:
        record, names = _find(name), store.names()
        asked = _canonical(name)
        if asked in names and len(_names_of(record, names)) > 1:
            store.forget_name(asked)
        elif not store.remove(record.digest):
            print(f"atoll: {name} is in use: it was not removed", file=sys.stderr)
            code = 1
    store.collect()
    return code


def prune(args: Namespace) -> int:
    """Delete images without a name, and what no image needs; say how much that was."""
    names, before = store.names(), store.total_size()
    for record in store.everything():
        age = time.time() - record.used
        is_old = args.days is not None and age > args.days * DAY_SECONDS
        if args.all or is_old or not _names_of(record, names):
            store.remove(record.digest)
    freed = max(store.collect(), before - store.total_size())
    print(f"atoll: {size_text(freed)} freed", file=sys.stderr)
    return 0


def build(args: Namespace) -> int:
    """Build an image by steps or from a Dockerfile; print its digest."""
    if not args.tag:
        raise ConfigError("name the image: --tag team/env:1")
    if args.base is None:
        for name in ("apt", "pip", "copy", "run", "env"):
            if getattr(args, name):
                raise ConfigError(f"--{name} is a step: name the image to begin with by --from")
        held = build_dockerfile(args.context, args.tag, file=args.file, arguments=args.build_arg)
    else:
        held = _build_by_steps(args)
    print(held.image.digest)
    print(f"atoll: {args.tag} is ready: {size_text(held.image.size)}", file=sys.stderr)
    held.close()
    return 0


def _build_by_steps(args: Namespace) -> HeldImage:
    from atoll.programs import build_steps  # noqa: PLC0415 - other commands need none of it
    from atoll.programs.build import BuildOptions, build_image  # noqa: PLC0415

    if args.file is not None or args.build_arg:
        raise ConfigError("--from builds by steps: leave out --file and --build-arg")
    steps: list[build_steps.Step] = []
    if args.env or args.workdir:
        steps.append(build_steps.Configure(tuple(args.env), args.workdir))
    steps += [build_steps.Apt(tuple(filter(None, words.split(",")))) for words in args.apt]
    steps += [build_steps.Pip.of(text) for text in args.pip]
    steps += [build_steps.Copy.of(text) for text in args.copy]
    steps += [build_steps.Run(command) for command in args.run]
    given = {name: size for name in ("memory", "disk") if (size := getattr(args, name, None))}
    hosts = tuple(args.allow_host) or None
    options = BuildOptions(
        hosts=hosts,
        private=tuple(args.private_network),
        use_cache=not args.no_cache,
        **given,
    )
    return build_image(args.base, steps, args.tag, options)


def _find(name: str) -> Record:
    """Return the image of a name or of the beginning of a digest; ConfigError if it is missing."""
    records = store.everything()
    digest = store.names().get(_canonical(name), "")
    beginning = name.removeprefix("sha256:")
    fitting = [
        record
        for record in records
        if record.digest == digest or (len(beginning) >= LEAST and record.hex.startswith(beginning))
    ]
    if len(fitting) > 1 and not digest:
        raise ConfigError(f"{name!r} is the beginning of several digests: write more of it")
    if not fitting:
        raise ConfigError(f"no image {name!r} is stored. Type: atoll image list")
    return next((record for record in fitting if record.digest == digest), fitting[0])


def _canonical(name: str) -> str:
    try:
        return str(parse(name))
    except ConfigError:
        return name


def _names_of(record: Record, names: dict[str, str]) -> list[str]:
    own = [name for name, digest in names.items() if digest == record.digest]
    return sorted(_short(name) for name in own if f"/{BUILD_CACHE}:" not in name)


def _short(name: str) -> str:
    """Return a name without what is completed when it is read."""
    asked = parse(name.partition(" ")[0])
    if isinstance(asked, RegistryReference) and asked.host == DEFAULT_HOST:
        return name.removeprefix(f"{DEFAULT_HOST}/").removeprefix(f"{DEFAULT_FOLDER}/")
    return name


def _facts(record: Record, names: dict[str, str]) -> dict[str, object]:
    more = {"names": _names_of(record, names), "size": record.size, "used": record.used}
    return {**record.facts(), **more}


def _config(image: Image) -> dict[str, object]:
    config = image.config
    return {
        "arch": config.architecture,
        "env": list(config.env),
        "workdir": config.workdir,
        "user": config.user,
        "entrypoint": list(config.entrypoint),
        "command": list(config.command),
        "labels": dict(config.labels),
    }
