#!/usr/bin/env python3
"""Does what cloud-init does with user data, below a folder in the place of /.

usage: cloud_init.py USER_DATA ROOT [SCHEMA]; writes the files and prints the commands of `runcmd` as JSON.
"""

import json
import os
import sys

import yaml

# What is written to and read from; programs of the machine stay what they are.
MOVED = ("/run/guest-agent-adopt", "/etc/guest-agent")


def moved(text: str, root: str) -> str:
    for place in MOVED:
        text = text.replace(place, root + place)
    return text


def write(file: dict, root: str) -> None:
    path = moved(file["path"], root)
    assert path.startswith(root), f"{path} is not below a place that is known"
    assert file["owner"] == "root:root", file
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(moved(file["content"], root))
    os.chmod(path, int(file["permissions"], 8))


def main() -> None:
    user_data, root = sys.argv[1], sys.argv[2]
    with open(user_data, encoding="utf-8") as file:
        text = file.read()
    assert text.startswith("#cloud-config\n"), "cloud-init would not know what it is"
    config = yaml.safe_load(text)
    if len(sys.argv) > 3:
        import jsonschema

        with open(sys.argv[3], encoding="utf-8") as file:
            schema = json.load(file)
        jsonschema.Draft4Validator(schema).validate(config)
    unknown = set(config) - {"write_files", "runcmd"}
    assert not unknown, f"this does not know {unknown}"
    for file in config["write_files"]:
        write(file, root)
    print(json.dumps([[moved(word, root) for word in command] for command in config["runcmd"]]))


if __name__ == "__main__":
    main()
