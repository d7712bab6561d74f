"""Kubernetes from Debian's source package: one binary for all programs of a node.

About seven minutes of processor time and 1.5 GB of disk, of which 140 MB stay.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tests.cluster.lab.packages import GO, TO_BUILD, apt_archives, install
from tests.cluster.lab.steps import run_step

VERSION = "1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
NEWER = "code-generator|sample-apiserver|/generated/openapi|kube-openapi"  # no part of the API's description

MAIN = """package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	command := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kube-proxy":              proxy.NewProxyCommand,
		"kubelet":                 kubelet.NewKubeletCommand,
	}[filepath.Base(os.Args[0])]()
	logs.InitLogs()
	defer logs.FlushLogs()
	if command.Execute() != nil {
		os.Exit(1)
	}
}
"""


def is_built(folder: Path) -> bool:
    return all((folder / "bin" / name).exists() for name in PROGRAMS)


def build(folder: Path) -> None:
    """Into folder/bin, once; the source and the compiler's cache are removed at the end."""
    if is_built(folder):
        return
    log = folder / "log" / "build.log"
    install(TO_BUILD, log)
    source, binary = folder / "source", folder / "bin" / "kubernetes"
    binary.parent.mkdir(parents=True, exist_ok=True)
    tree = _unpacked(source, log)
    inside = tree / ".go" / "src" / "k8s.io" / "kubernetes"
    environment = {
        "PWD": str(inside),  # Go finds its packages by the name with the link in it
        "PATH": f"{GO.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(source),
        "GOPATH": str(tree / ".go"),
        "GOCACHE": str(source / "cache"),
        "CGO_ENABLED": "0",
        "GO111MODULE": "off",
        "GOFLAGS": "",
    }
    # imports name the tree by its place in GOPATH
    inside.parent.mkdir(parents=True, exist_ok=True)
    if not inside.is_symlink():
        inside.symlink_to("../../..")
    _describe_api(inside, environment, log)
    main = tree / "cmd" / "all-in-one" / "main.go"
    main.parent.mkdir(exist_ok=True)
    main.write_text(MAIN)
    vendor = "k8s.io/kubernetes/vendor/k8s.io"
    stamps = (f"{vendor}/component-base/version", f"{vendor}/client-go/pkg/version")
    flags = " ".join(["-s -w", *(f"-X {each}.gitVersion=v{VERSION}" for each in stamps)])
    run_step(
        f"build Kubernetes {VERSION}",
        *(GO, "build", "-p", str(os.cpu_count()), "-o", binary, "-ldflags", flags, "./cmd/all-in-one"),
        log=log,
        cwd=inside,
        environment=environment,
    )
    for name in PROGRAMS:
        (folder / "bin" / name).symlink_to(binary.name)
    run_step("remove the source", "chmod", "-R", "u+w", source, log=log)
    shutil.rmtree(source)


def _unpacked(source: Path, log: Path) -> Path:
    """Debian's source package, from the archive that this machine's packages come from."""
    tree = source / f"kubernetes-{VERSION}"
    if tree.exists():
        return tree
    lists, parts = source / "lists", source / "parts"
    for each in (lists / "partial", parts):
        each.mkdir(parents=True, exist_ok=True)
    for path in apt_archives():
        wanted = re.sub(r"^Types:.*", "Types: deb-src", path.read_text(), flags=re.MULTILINE)
        (parts / path.name).write_text(re.sub(r"^deb\s", "deb-src ", wanted, flags=re.MULTILINE))
    choices = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": parts,
        "Dir::State::lists": lists,
    }
    apt = ("apt-get", *(f"-o{name}={value}" for name, value in choices.items()))
    run_step("list of sources", *apt, "update", log=log)
    run_step("source of Kubernetes", *apt, "source", "--download-only", "kubernetes", log=log, cwd=source)
    (archive,) = source.glob("kubernetes_*.orig.tar.gz")
    run_step("unpack", "tar", "--extract", "--file", archive, "--directory", source, log=log)
    return tree


def _describe_api(tree: Path, environment: dict[str, str], log: Path) -> None:
    """The one generated file that Debian's tree lacks; its own make rule fails with this version of Go."""
    generator = tree / ".go" / "openapi-gen"
    run_step(
        "build openapi-gen",
        *(GO, "build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"),
        log=log,
        cwd=tree,
        environment=environment,
    )
    marked = "grep -rl '+k8s:openapi-gen=' --include=*.go pkg cmd vendor/k8s.io/*/ plugin | xargs -n1 dirname"
    named = f"sort -u | grep -v -E '{NEWER}' | sed 's#^#k8s.io/kubernetes/#' | paste -sd,"
    generate = (
        f'"{generator}" --logtostderr -i "$({marked} | {named})" -p k8s.io/kubernetes/pkg/generated/openapi '
        "-O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r /dev/null"
    )
    run_step("describe the API", "bash", "-euc", generate, log=log, cwd=tree, environment=environment)
