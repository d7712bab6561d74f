"""The distributions of a job and their digests: filled in from an operator's copy, compared with a silo's."""

from __future__ import annotations

from chorale.runtime.distributions import installed
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec
from chorale.spec.plug_in_specs import CodeSpec
from crypto.errors import ConfigError


def pinned(spec: JobSpec) -> JobSpec:
    """The job with the digest of every distribution that it names, from what is installed here.

    Raises ConfigError where one is not, or is another than the job says already.
    """
    if not spec.distributions:
        return spec
    given = {each.distribution: each.sha256 for each in spec.code or ()}
    code = []
    for distribution in spec.distributions:
        found, expected = installed(distribution), given.get(distribution)
        if expected is not None:
            found.check_digest(expected)
        code.append(CodeSpec(distribution=distribution, sha256=found.sha256))
    return spec.model_copy(update={"code": tuple(code)})


def check_code(spec: AnySpec) -> None:
    """Raises ConfigError where what is installed here is not what the job pins."""
    for fault in code_faults(spec).values():
        raise ConfigError(fault)


def code_faults(spec: AnySpec) -> dict[str, str]:
    """By distribution that is not here as the job pins it: what is wrong with it."""
    found = {}
    for each in spec.code or ():
        try:
            if each.sha256 is not None:
                installed(each.distribution).check_digest(each.sha256)
        except ConfigError as error:
            found[each.distribution] = str(error)
    return found
