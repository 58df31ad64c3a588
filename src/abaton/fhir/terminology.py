"""Codes that de-identification keeps: only texts that cannot be anything but a code.

Local systems may contain any text in a coded value, names included. A code is therefore kept only
(1) if R4 binds its element to a fixed list that contains it;
(2) if its system is one of HL7's and the shipped list of that system contains it;
(3) if its system is a public terminology and it has that terminology's form, check digit included;
(4) if the study document names system and code.
Display texts, versions and other texts beside a code are never kept.

Languages, countries, currencies, imaging modalities and vaccine manufacturers are lists, not patterns, because short
names such as *Kim* or *Li* match any pattern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from abaton.fhir.elements import element_table, resource_types
from abaton.fhir.ucum import is_unit


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LANGUAGES = _word_set(
    """
aa ab ae af ak am an ar arn as ast av ay az ba be ber bg bi bm bn bo br bs ca ce ch chr ckb cmn co
cr crh cs cu cv cy da de dsb dv dz ee el en eo es et eu fa ff fi fil fj fo fr frr fur fy ga gd gl gn
gsw gu gv ha haw he hi hmn ho hr hsb ht hu hy hz ia id ie ig ii ik io is it iu ja jam jpr jv ka kab
kg ki kj kk kl km kmb kn ko kok kr ks ku kv kw ky la lb lg li ln lo lt lu lus lv mai mg mh mi mk ml
mn mni mos mr ms mt mul my na nb nd nds ne ng nl nn no nr nso nv ny oc oj om or os pa pap pi pl prs
ps pt qu rm rn ro rom ru rw sa sc sco sd se sg sh shi si sk sl sm smn sms sn so sq sr srn ss st su
sv sw ta te tet tg th ti tk tl tn to tpi tr ts tt tw ty ug uk und ur uz ve vi vo wa wo xh yi yo yue
za zgh zh zu zxx
"""
)
_COUNTRIES = _word_set(
    """
AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT
BV BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH
ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT
HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS
LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI
NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG
SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG
UM US UY UZ VA VC VE VG VI VN VU WF WS XK YE YT ZA ZM ZW
ABW AFG AGO AIA ALA ALB AND ARE ARG ARM ASM ATA ATF ATG AUS AUT AZE BDI BEL BEN BES BFA BGD BGR BHR
BHS BIH BLM BLR BLZ BMU BOL BRA BRB BRN BTN BVT BWA CAF CAN CCK CHE CHL CHN CIV CMR COD COG COK COL
COM CPV CRI CUB CUW CXR CYM CYP CZE DEU DJI DMA DNK DOM DZA ECU EGY ERI ESH ESP EST ETH FIN FJI FLK
FRA FRO FSM GAB GBR GEO GGY GHA GIB GIN GLP GMB GNB GNQ GRC GRD GRL GTM GUF GUM GUY HKG HMD HND HRV
HTI HUN IDN IMN IND IOT IRL IRN IRQ ISL ISR ITA JAM JEY JOR JPN KAZ KEN KGZ KHM KIR KNA KOR KWT LAO
LBN LBR LBY LCA LIE LKA LSO LTU LUX LVA MAC MAF MAR MCO MDA MDG MDV MEX MHL MKD MLI MLT MMR MNE MNG
MNP MOZ MRT MSR MTQ MUS MWI MYS MYT NAM NCL NER NFK NGA NIC NIU NLD NOR NPL NRU NZL OMN PAK PAN PCN
PER PHL PLW PNG POL PRI PRK PRT PRY PSE PYF QAT REU ROU RUS RWA SAU SDN SEN SGP SGS SHN SJM SLB SLE
SLV SMR SOM SPM SRB SSD STP SUR SVK SVN SWE SWZ SXM SYC SYR TCA TCD TGO THA TJK TKL TKM TLS TON TTO
TUN TUR TUV TWN TZA UGA UKR UMI URY USA UZB VAT VCT VEN VGB VIR VNM VUT WLF WSM XKX YEM ZAF ZMB ZWE
"""
)
_CURRENCIES = _word_set(
    """
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD
CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF
GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK
LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD
OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN
SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VES VND VUV WST XAF XAG XAU XCD XCG
XDR XOF XPF XXX YER ZAR ZMW ZWG
"""
)
_MODALITIES = _word_set(
    """
AR AU BMD CR CT DG DX ECG EPS ES GM HC IO IVOCT IVUS KER KO LEN MG MR NM OAM OCT OP OPM OPT OPV OSS
OT PR PT PX REG RF RG RTDOSE RTIMAGE RTPLAN RTRECORD RTSTRUCT SEG SM SMR SR SRF US VA XA XC
"""
)
_MAKERS = _word_set(
    """
AB ACA AKR ALP AR AVB AVI BA BAH BAY BN BP BPC BRR BTP CEN CHI CMP CNJ CON CRU CSL DVC DVX EVN GEO
GRE GRF IAG IM IUS JNJ JPN JSN KED KGC LED MA MBL MCM MED MIP MOD MSD NAB NAV NOV NVX NYB ORT OTC
OTH PAX PD PFR PMC PRX PSC PWJ REB SCL SEQ SKB SOL TAL UNK USA VAL VET VXG WA WAL ZLB
"""
)
_TAG = re.compile(r"([a-z]{2,3})(?:-(?:Arab|Cyrl|Hans|Hant|Latn))?(?:-(?:([A-Z]{2})|419|150|001))?", re.ASCII)
_DICOM = re.compile(r"1[12]\d{4}", re.ASCII)

is_country = _COUNTRIES.__contains__
is_currency = _CURRENCIES.__contains__
is_vaccine_maker = _MAKERS.__contains__


@lru_cache(1024)
def is_language(text: str) -> bool:
    """Return whether a code is a BCP 47 language tag, as in the terminology of ``language`` elements.

    >>> [is_language(text) for text in ("en", "it-IT", "zh-Hant-TW", "kim", "en-LI-Smith", "no-XY")]
    [True, True, True, False, False, False]
    """
    match = _TAG.fullmatch(text)
    return match is not None and match[1] in _LANGUAGES and (match[2] is None or match[2] in _COUNTRIES)


def is_dicom(text: str) -> bool:
    """Return whether a code is of the DICOM terminology: a modality, or six digits in DICOM's range.

    >>> is_dicom("CT"), is_dicom("110114"), is_dicom("LI"), is_dicom("839201")
    (True, True, False, False)
    """
    return text in _MODALITIES or _DICOM.fullmatch(text) is not None


_CACHE_SIZE = 1_024
DATA_ABSENT_REASON = "http://terminology.hl7.org/CodeSystem/data-absent-reason"

_VERHOEFF_TIMES = [
    "0123456789",
    "1234067895",
    "2340178956",
    "3401289567",
    "4012395678",
    "5987604321",
    "6598710432",
    "7659821043",
    "8765932104",
    "9876543210",
]
_VERHOEFF_TURN = [
    "0123456789",
    "1576283094",
    "5803796142",
    "8916043527",
    "9453126870",
    "4286573901",
    "2793806415",
    "7046913258",
]


def is_snomed(code: str) -> bool:
    """Return whether a code has the form of a SNOMED CT concept: digits, partition and Verhoeff check digit.

    >>> is_snomed("38341003"), is_snomed("38341004"), is_snomed("Smith")
    (True, False, False)
    """
    if not (6 <= len(code) <= 18 and code.isascii() and code.isdigit()) or code[0] == "0":
        return False
    if code[-3:-1] not in ("00", "10"):
        return False
    check = 0
    for i, digit in enumerate(reversed(code)):
        check = int(_VERHOEFF_TIMES[check][int(_VERHOEFF_TURN[i % 8][int(digit)])])
    return check == 0


_LOINC = re.compile(r"(\d{1,5})-(\d)")
_LOINC_PART = re.compile(r"L[AP]\d{1,6}-\d")


def is_loinc(code: str) -> bool:
    """Return whether a code has the form of a LOINC code (check digit included), answer or part.

    >>> is_loinc("8310-5"), is_loinc("8310-6"), is_loinc("LA10423-4")
    (True, False, True)
    """
    match = _LOINC.fullmatch(code)
    if match is None:
        return _LOINC_PART.fullmatch(code) is not None
    doubled = str(int(match[1][::-1][::2][::-1]) * 2)
    total = sum(map(int, doubled)) + sum(map(int, match[1][::-1][1::2]))
    return (10 - total % 10) % 10 == int(match[2])


def _pattern_check(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lru_cache(_CACHE_SIZE)(lambda code: compiled.fullmatch(code) is not None)


_ICD10 = _pattern_check(r"[A-Z]\d\d(?:\.\d{1,3})?[*+†!]?")
_ICD10_CM = _pattern_check(r"[A-Z]\d[0-9AB](?:\.?[0-9]{1,4}|\.?[0-9X]{0,3}[A-DGHJ-NPQRSX0-9])?")
_ATC = _pattern_check(r"[A-Z](?:\d\d(?:[A-Z](?:[A-Z](?:\d\d)?)?)?)?")
_DIGITS = _pattern_check(r"\d{1,7}")

TERMINOLOGIES: Mapping[str, Callable[[str], bool]] = {
    "http://snomed.info/sct": is_snomed,
    "http://loinc.org": is_loinc,
    "http://unitsofmeasure.org": is_unit,
    "http://www.nlm.nih.gov/research/umls/rxnorm": _DIGITS,
    "http://hl7.org/fhir/sid/cvx": _pattern_check(r"\d{1,3}"),
    "http://hl7.org/fhir/sid/mvx": is_vaccine_maker,
    "http://hl7.org/fhir/sid/ndc": _pattern_check(r"\d{4,5}-\d{3,4}-\d{1,2}"),
    "http://hl7.org/fhir/sid/icd-10": _ICD10,
    "http://hl7.org/fhir/sid/icd-10-cm": _ICD10_CM,
    "http://hl7.org/fhir/sid/icd-10-us": _ICD10_CM,
    "http://hl7.org/fhir/sid/icd-10-de": _ICD10,
    "http://fhir.de/CodeSystem/dimdi/icd-10-gm": _ICD10,
    "http://fhir.de/CodeSystem/bfarm/icd-10-gm": _ICD10,
    "http://hl7.org/fhir/sid/icd-9-cm": _pattern_check(r"(?:\d{3}|V\d\d)(?:\.?\d{1,2})?|E\d{3}(?:\.?\d)?"),
    "http://hl7.org/fhir/sid/icd-9": _pattern_check(r"(?:\d{3}|V\d\d)(?:\.?\d{1,2})?|E\d{3}(?:\.?\d)?"),
    "http://hl7.org/fhir/sid/icf": _pattern_check(r"[bsde]\d{1,5}"),
    "http://fhir.de/CodeSystem/bfarm/ops": _pattern_check(r"\d-\d\d[0-9a-z](?:\.[0-9a-z]{1,2})?"),
    "http://www.whocc.no/atc": _ATC,
    "http://fhir.de/CodeSystem/bfarm/atc": _ATC,
    "http://www.ama-assn.org/go/cpt": _pattern_check(r"\d{4}[0-9FT]"),
    "https://www.cms.gov/Medicare/Coding/HCPCSReleaseCodeSets": _pattern_check(r"[A-V]\d{4}"),
    "http://terminology.hl7.org/CodeSystem/HCPCS": _pattern_check(r"[A-V]\d{4}"),
    "http://www.orpha.net": _pattern_check(r"(?:ORPHA:)?\d{1,6}"),
    "http://human-phenotype-ontology.org": _pattern_check(r"HP:\d{7}"),
    "http://www.genenames.org": _pattern_check(r"HGNC:\d{1,5}"),
    "http://terminology.hl7.org/CodeSystem/icd-o-3": _pattern_check(r"\d{4}/\d|C\d\d(?:\.\d)?"),
    "http://standardterms.edqm.eu": _pattern_check(r"[1-6]\d{4}[0-9]00|[1-6]\d{5}50"),
    "http://nucc.org/provider-taxonomy": _pattern_check(r"\d{3}[0-9A-Z]\d{5}X"),
    "http://dicom.nema.org/resources/ontology/DCM": is_dicom,
    "urn:iso:std:iso:11073:10101": _pattern_check(r"\d{1,6}"),
    "urn:iso:std:iso:3166": is_country,
    "urn:iso:std:iso:4217": is_currency,
    "urn:ietf:bcp:47": is_language,
    "urn:ietf:rfc:3986": _pattern_check(r"(?:urn:oid:)?1\.2\.840\.10008\.5\.1\.4(?:\.\d{1,3}){1,8}"),
    "urn:oid:2.16.840.1.113883.6.238": _pattern_check(r"\d{4}-\d"),
}

_MEDIA_TYPES = frozenset(
    [
        "application/pdf",
        "application/json",
        "application/xml",
        "application/fhir+json",
        "application/fhir+xml",
        "application/dicom",
        "application/zip",
        "application/gzip",
        "application/octet-stream",
        "application/rtf",
        "application/msword",
        "application/jose",
        "application/hl7-v3+xml",
        "application/hl7-cda+xml",
        "application/hl7-sda+xml",
        "application/signature+xml",
        "application/fhir+turtle",
        "application/json-patch+json",
        "application/javascript",
        "text/plain",
        "text/html",
        "text/xml",
        "text/csv",
        "text/rtf",
        "text/cql",
        "text/markdown",
        "text/cda+xml",
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/tiff",
        "image/bmp",
        "image/svg+xml",
        "image/webp",
        "image/dicom+jpeg",
        "audio/mpeg",
        "audio/mp4",
        "audio/ogg",
        "audio/wav",
        "audio/basic",
        "video/mp4",
        "video/mpeg",
        "video/ogg",
        "video/webm",
        "video/quicktime",
        "image/jpg",
        "xml",
        "json",
    ]
)
_MEDIA = re.compile(r"([a-z]+/[a-z0-9.+-]+)(?:; ?charset=(?:utf|UTF|iso|ISO|us|US)-?[A-Za-z0-9-]{1,8})?")


def is_media_type(text: str) -> bool:
    """Return whether a code is a common media type (the terminology of attachments).

    >>> is_media_type("application/pdf"), is_media_type("text/plain; charset=utf-8"), is_media_type("mr/jo")
    (True, True, False)
    """
    match = _MEDIA.fullmatch(text)
    return match is not None and match[1] in _MEDIA_TYPES


@cache
def _vocabulary() -> dict[str, Any]:
    text = files("abaton.fhir").joinpath("vocabulary.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def _systems() -> dict[str, frozenset[str]]:
    return {name: frozenset(codes.split(" ")) for name, codes in _vocabulary()["systems"].items()}


@cache
def known_profiles() -> frozenset[str]:
    """Return the URLs of published FHIR profiles that may stay in ``meta.profile``."""
    core = (f"http://hl7.org/fhir/StructureDefinition/{name}" for name in resource_types())
    return frozenset(core) | frozenset(_vocabulary()["profiles"])


@cache
def _bindings() -> dict[str, Callable[[str], bool]]:
    checks: dict[str, Callable[[str], bool]] = {}
    for values, paths in _vocabulary()["bindings"].items():
        listed = frozenset(values.split(" "))
        for path in paths.split(" "):
            checks[path] = listed.__contains__
    names = frozenset(element_table()).__contains__
    for kind, check in (("type", names), ("media", is_media_type), ("unit", is_unit)):
        for path in _vocabulary()["names"][kind].split(" "):
            checks[path] = check
    checks["Money.currency"] = is_currency
    checks["Address.country"] = is_country
    return checks


def code_check(type_name: str, element: str) -> Callable[[str], bool] | None:
    """Return the terminology check of a primitive ``code`` element, or None if no value set is known.

    >>> code_check("Patient", "gender")("female"), code_check("Patient", "gender")("Smith")
    (True, False)
    """
    return is_language if element == "language" else _bindings().get(f"{type_name}.{element}")


def is_known(system: str, code: str) -> bool:
    """Return whether a code is listed in, or has the form of, a public terminology (code system).

    >>> is_known("http://loinc.org", "8310-5"), is_known("http://hospital.example/codes", "8310-5")
    (True, False)
    """
    form = TERMINOLOGIES.get(system)
    return form(code) if form is not None else code in _systems().get(system, ())


def is_public(system: str) -> bool:
    """Return whether a terminology's code system is public, so that its URL does not identify a site.

    >>> is_public("http://loinc.org"), is_public("http://st-mary.example/codes")
    (True, False)
    """
    return system in TERMINOLOGIES or system in _systems()


LOINC = "http://loinc.org"
SNOMED = "http://snomed.info/sct"
UCUM = "http://unitsofmeasure.org"
ICD10 = "http://hl7.org/fhir/sid/icd-10"
ICD10_CM = "http://hl7.org/fhir/sid/icd-10-cm"
ICD10_GM = "http://fhir.de/CodeSystem/bfarm/icd-10-gm"
ICD9_CM = "http://hl7.org/fhir/sid/icd-9-cm"
ATC = "http://www.whocc.no/atc"
RXNORM = "http://www.nlm.nih.gov/research/umls/rxnorm"
OPS = "http://fhir.de/CodeSystem/bfarm/ops"
CVX = "http://hl7.org/fhir/sid/cvx"
NDC = "http://hl7.org/fhir/sid/ndc"
CPT = "http://www.ama-assn.org/go/cpt"
HCPCS = "http://terminology.hl7.org/CodeSystem/HCPCS"

SHORT_NAMES: Mapping[str, str] = {
    "loinc": LOINC,
    "snomed": SNOMED,
    "icd10": ICD10,
    "icd10cm": ICD10_CM,
    "icd10gm": ICD10_GM,
    "icd9cm": ICD9_CM,
    "atc": ATC,
    "rxnorm": RXNORM,
    "ops": OPS,
    "cvx": CVX,
    "ndc": NDC,
    "cpt": CPT,
    "hcpcs": HCPCS,
}
"""Code system of each short name."""
