"""Short codes of public lists: languages, countries, currencies, kinds of imaging, makers of vaccines.

A word of two or three letters may be a name (Kim, Lee, Li), so its form says nothing: only what stands on the
list is a code.
"""

from __future__ import annotations

import re
from functools import lru_cache


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LANGUAGES = _listed(
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
_COUNTRIES = _listed(
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
_CURRENCIES = _listed(
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
_MODALITIES = _listed(
    """
AR AU BMD CR CT DG DX ECG EPS ES GM HC IO IVOCT IVUS KER KO LEN MG MR NM OAM OCT OP OPM OPT OPV OSS
OT PR PT PX REG RF RG RTDOSE RTIMAGE RTPLAN RTRECORD RTSTRUCT SEG SM SMR SR SRF US VA XA XC
"""
)
_MAKERS = _listed(
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
    """Whether a text names a language, as BCP 47 does.

    >>> [is_language(text) for text in ("en", "it-IT", "zh-Hant-TW", "kim", "en-LI-Smith", "no-XY")]
    [True, True, True, False, False, False]
    """
    match = _TAG.fullmatch(text)
    return match is not None and match[1] in _LANGUAGES and (match[2] is None or match[2] in _COUNTRIES)


def is_dicom(text: str) -> bool:
    """Whether a text is a code of DICOM's own list: a kind of imaging, or six digits that begin as its codes do.

    >>> is_dicom("CT"), is_dicom("110114"), is_dicom("LI"), is_dicom("839201")
    (True, True, False, False)
    """
    return text in _MODALITIES or _DICOM.fullmatch(text) is not None
