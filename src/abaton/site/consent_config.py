"""Section ``[consent]`` of ``site.toml``: registry, legal basis, permit, consent forms and opt-outs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from abaton.documents.fields import DateField, Section, Text, field_error
from abaton.governance.consent import ConsentAction, DataPermit
from abaton.governance.consent_forms import RESEARCH, ConsentForm
from abaton.site.config_fields import PathText, Token, Url, check_no_password
from abaton.study import Purpose


class FormActionsSection(Section):
    """Provision codes of a form by action; an action without codes is not permitted."""

    collect: tuple[Token, ...] = ()
    send: tuple[Token, ...] = ()
    train: tuple[Token, ...] = ()


class ConsentFormSection(Section):
    """``[[consent.forms]]``: consent form of the site as FHIR Consent resources, and the meaning of its codes."""

    name: Text
    resources: tuple[PathText, ...] = Field(min_length=1)
    policies: tuple[Token, ...] = Field(min_length=1)
    scopes: tuple[Annotated[str, Field(pattern=r"^[a-z-]{1,40}$")], ...] = ("research",)
    purposes: tuple[Token, ...] = RESEARCH
    recipients: tuple[Token, ...] = ()
    actions: FormActionsSection

    def to_form(self) -> ConsentForm:
        """Return a consent form of the site's consent configuration in the form that `abaton.governance` reads."""
        codes = {
            ConsentAction.COLLECT: self.actions.collect,
            ConsentAction.SEND: self.actions.send,
            ConsentAction.TRAIN: self.actions.train,
        }
        return ConsentForm(
            self.name,
            frozenset(self.policies),
            {action: frozenset(tokens) for action, tokens in codes.items()},
            frozenset(self.scopes),
            frozenset(self.purposes),
            frozenset(self.recipients),
        )


class PermitSection(Section):
    """``[consent.permit]``: data permit of a health data access body (EHDS, Article 68)."""

    number: Text
    authority: Text
    start: DateField
    end: DateField
    purposes: tuple[Purpose, ...] = Field(min_length=1)
    document: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    actions: tuple[Literal["train", "send"], ...] = Field(("train",), min_length=1)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.end < self.start:
            raise field_error(
                f"the permit ends ({self.end}) before it starts ({self.start})", "correct start or end"
            )
        return self

    def to_permit(self) -> DataPermit:
        """Return the data permit of the site's consent configuration for `abaton.governance`."""
        purposes = tuple(sorted(purpose.value for purpose in self.purposes))
        by_name = {"train": ConsentAction.TRAIN, "send": ConsentAction.SEND}
        actions = (ConsentAction.COLLECT, *sorted({by_name[name] for name in self.actions}))
        return DataPermit(self.number, self.authority, self.start, self.end, purposes, self.document, actions)


class OptOutsSection(Section):
    """``[consent.opt_outs]``: list of persons who have opted out of use for research (EHDS, Article 71)."""

    file: PathText | None = None
    url: Url | None = None
    fhir: Url | None = None
    ca_file: PathText | None = None

    @model_validator(mode="after")
    def _check_location(self) -> Self:
        if sum(location is not None for location in (self.file, self.url, self.fhir)) != 1:
            raise field_error(
                "exactly one location of the opt-out list is required",
                "set 'file' (a list of Patient ids), 'url' (the same on a server) or 'fhir' (a FHIR server)",
            )
        return self


class SiteConsentSection(Section):
    """``[consent]``: consent of each subject, a data permit, or a stated legal basis."""

    registry: Annotated[PathText, AfterValidator(check_no_password)] | None = None
    legal_basis: Text | None = None
    permit: PermitSection | None = None
    forms: tuple[ConsentFormSection, ...] = ()
    opt_outs: OptOutsSection | None = None

    @model_validator(mode="after")
    def _check_legal_basis(self) -> Self:
        if self.legal_basis is not None and self.permit is not None:
            raise field_error("both 'legal_basis' and [consent.permit] are set", "remove one of them")
        if self.registry is None and self.legal_basis is None and self.permit is None:
            raise field_error(
                "no legal basis is configured",
                'add registry = "PATH", [consent.permit] or legal_basis = "TEXT"',
            )
        if self.forms and not self.is_per_subject:
            raise field_error(
                "[[consent.forms]] has no effect with a permit or a legal basis",
                "remove the forms, or the permit and the legal basis",
            )
        return self

    @property
    def is_per_subject(self) -> bool:
        """Whether the site's consent configuration requires a consent of every subject."""
        return self.legal_basis is None and self.permit is None

    @property
    def may_send(self) -> bool:
        """Whether the site's consent configuration allows sending: by each subject's consent, or on a permit."""
        return self.is_per_subject or (self.permit is not None and "send" in self.permit.actions)

    @property
    def registry_path(self) -> str:
        """Path or URL of the registry in the consent configuration; its log also records a basis or permit."""
        return self.registry or "governance.db"

    @property
    def needs_registry_key(self) -> bool:
        """Whether the consent configuration implies pseudonyms in the registry, for consents or opt-outs."""
        return self.may_send or self.opt_outs is not None
