"""Rules that a key directory and the context of a sum must satisfy, checked by every site without memory."""

from __future__ import annotations

from collections.abc import Mapping

from abaton.errors import RefusedError
from abaton.secure_sum.modular_vectors import EXACT_BITS, SEGMENT_BITS, max_magnitude
from abaton.secure_sum.settings import SumSettings
from abaton.secure_sum.sum_messages import CHECK_SEGMENT, KeyAdvertisement, KeyDirectory, SumContext


def refuse(what: str, remedy: str = "inform the research centre") -> RefusedError:
    """Return the error with which a party refuses a message of a secure sum."""
    return RefusedError(what, where="secure sum", remedy=remedy)


def advertisement_problem(advertisement: KeyAdvertisement, settings: SumSettings) -> str:
    """Return why an advertisement is not valid in this run; empty if it is."""
    if (advertisement.study, advertisement.run) != (settings.study, settings.run):
        return "advertises a key for another study or run"
    if advertisement.site not in settings.sites:
        return "is not listed in the study"
    if advertisement.signer() != settings.sites[advertisement.site]:
        return "advertises a key without the signature of the key that the study lists"
    return ""


def check_directory(
    directory: KeyDirectory, settings: SumSettings, trusted_signers: Mapping[str, str]
) -> None:
    """Check a key directory: sites listed in the study, with keys that this site has compared.

    Args:
        directory: Directory that the centre sent.
        settings: Settings of the study.
        trusted_signers: Fingerprints of the other sites' keys that this site has compared over another channel.

    Raises:
        RefusedError: A key is unknown or invalid, or too few sites are in the directory.
    """
    names = [advertisement.site for advertisement in directory.advertisements]
    if names != sorted(set(names)):
        raise refuse("the key directory is not sorted or lists a site twice")
    for advertisement in directory.advertisements:
        if problem := advertisement_problem(advertisement, settings):
            raise refuse(f"site '{advertisement.site}' {problem}")
        if trusted_signers.get(advertisement.site) != settings.sites[advertisement.site]:
            raise refuse(
                f"the key of site '{advertisement.site}' is not among this site's trusted signers",
                "compare its fingerprint with that site by telephone and add it to [policy.trusted_signers]",
            )
    if len(names) < settings.threshold:
        raise refuse(f"the key directory has {len(names)} sites, fewer than {settings.threshold}")


def check_context(context: SumContext, settings: SumSettings, directory: KeyDirectory) -> None:
    """Check the context of a sum against the study and the key directory.

    Raises:
        RefusedError: The context belongs to another run, or its contributors break a rule.
    """
    expected = (settings.study, settings.run, directory.digest, settings.threshold)
    if (context.study, context.run, context.directory, context.threshold) != expected:
        raise refuse("the sum belongs to another study, run, key directory or threshold")
    names = [contributor.site for contributor in context.contributors]
    if names != sorted(set(names)):
        raise refuse("the contributors are not sorted or one occurs twice")
    if not set(names) <= directory.by_site.keys():
        raise refuse("a contributor is not in the key directory")
    if len(names) < settings.min_sites:
        raise refuse(f"the sum has {len(names)} contributors, fewer than {settings.min_sites}")
    if settings.fixed_groups and any(
        group & set(names) and not group <= set(names) for group in settings.groups
    ):
        raise refuse("the contributors are not a union of whole groups")
    subjects = [directory.by_site[name].subjects for name in names]
    if sum(subjects) - max(subjects) < settings.min_subjects:
        raise refuse("the other sites of a contributor have fewer subjects than min_subjects")
    _check_versions(context, settings)
    _check_segments(context, settings)


def _check_versions(context: SumContext, settings: SumSettings) -> None:
    digests: dict[int, str] = {}
    for contributor in context.contributors:
        if digests.setdefault(contributor.version, contributor.version_digest) != contributor.version_digest:
            raise refuse("contributors started from different models of one version")
    if settings.same_version and len(digests) > 1:
        raise refuse("contributors started from different versions")


def _check_segments(context: SumContext, settings: SumSettings) -> None:
    names = [segment.name for segment in context.segments]
    if len(set(names)) < len(names) or CHECK_SEGMENT in names:
        raise refuse("a name of a segment is used twice")
    for segment in context.segments:
        if segment.bits not in SEGMENT_BITS or not max_magnitude(segment.bits, len(settings.sites)):
            raise refuse(
                f"segment '{segment.name}' has {segment.bits} bits",
                f"use 2 to 16, 32, 64 or {EXACT_BITS} bits, enough for a sum over all listed sites",
            )
