"""Guest to libvirt XML and back: the plan is written, read again to the same facts, and foreign XML is criticised.

Below planning (numbers are decided there, never here), above the GPU makers. jinja2 and lxml are imported inside
the functions that use them, so that importing this package costs nothing.
"""

from hosttune.domain.critic import criticise
from hosttune.domain.elements import known_elements
from hosttune.domain.facts import DomainFacts
from hosttune.domain.proof import differences
from hosttune.domain.reader import read_domain
from hosttune.domain.sameness import same_guest
from hosttune.domain.writer import domain_xml

__all__ = ["DomainFacts", "criticise", "differences", "domain_xml", "known_elements", "read_domain", "same_guest"]
