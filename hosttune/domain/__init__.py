"""From a guest to libvirt XML and back: a plan is written as XML and read back.

Above the GPU makers and below planning, which decides all numbers. jinja2 and lxml are imported inside the
functions that use them, so that importing this package is fast.
"""

from hosttune.domain.elements import known_elements
from hosttune.domain.facts import DomainFacts
from hosttune.domain.proof import differences
from hosttune.domain.reader import read_domain
from hosttune.domain.sameness import same_guest
from hosttune.domain.writer import domain_xml

__all__ = ["DomainFacts", "differences", "domain_xml", "known_elements", "read_domain", "same_guest"]
