"""Kubernetes' own functions: quantities, versions, addresses, regular expressions. Overload id -> function."""

import ipaddress
import re

from gpupolicy.adapters.cel import regex
from gpupolicy.adapters.cel.functions_standard import Implementation
from gpupolicy.adapters.cel.syntax import UncertainError
from gpupolicy.adapters.cel.values import INT64_MAX, CelError, QuantityValue, no_overload
from gpupolicy.core import quantities, versions
from gpupolicy.core.quantities import Quantity
from gpupolicy.core.versions import Version

__all__ = ["IMPLEMENTATIONS"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def _quantity(text: str) -> QuantityValue:
    try:
        return QuantityValue(quantities.parse(text))
    except quantities.InvalidQuantityError as error:
        raise CelError(str(error)) from error
    except quantities.UnsupportedQuantityError as error:
        raise UncertainError(str(error)) from error


def _is_quantity(text: str) -> bool:
    try:
        quantities.parse(text)
    except quantities.InvalidQuantityError:
        return False
    except quantities.UnsupportedQuantityError:
        return True
    return True


def _as_integer(value: QuantityValue) -> int:
    number = value.quantity.as_int64()
    if number is None:
        raise CelError("cannot convert value to integer")
    return number


def _added(value: QuantityValue, other: Quantity) -> QuantityValue:
    return QuantityValue(value.quantity.add(other), computed=True)


def _subtracted(value: QuantityValue, other: Quantity) -> QuantityValue:
    return QuantityValue(value.quantity.sub(other), computed=True)


def _semver(text: str, normalize: bool = False) -> Version:
    try:
        return versions.normalize(text) if normalize else versions.parse(text)
    except versions.InvalidVersionError as error:
        raise CelError(str(error)) from error


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        _semver(text, normalize)
    except CelError:
        return False
    return True


def _order(left: Version, right: Version) -> int:
    return (left > right) - (left < right)


def _wrapped(number: int) -> int:
    # Upstream stores unsigned numbers and shows them signed.
    return number - (1 << 64) if number > INT64_MAX else number


def _ip(text: str) -> Address:
    if "%" in text:
        raise CelError(f'IP address "{text}" with zone value is not allowed')
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise CelError(f'IP Address "{text}" parse error during conversion from string') from error
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise CelError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return address


def _is_ip(text: str) -> bool:
    try:
        _ip(text)
    except CelError:
        return False
    return True


def _is_canonical(text: str) -> bool:
    return str(_ip(text)) == text


def _cidr(text: str) -> Network:
    match = re.fullmatch(r"(?P<address>[^/]*)/(?P<bits>0|[1-9][0-9]{0,2})", text, re.ASCII)
    if match is None:
        raise CelError("network address parse error during conversion from string")
    try:
        address = _ip(match["address"])
        return ipaddress.ip_interface(f"{address}/{match['bits']}")
    except ValueError as error:
        raise CelError("network address parse error during conversion from string") from error


def _is_cidr(text: str) -> bool:
    try:
        _cidr(text)
    except CelError:
        return False
    return True


def _contains_ip(network: Network, address: Address) -> bool:
    return address.version == network.version and address in network.network


def _contains_ip_text(network: Network, text: str) -> bool:
    try:
        return _contains_ip(network, _ip(text))
    except CelError as error:
        raise no_overload() from error


def _contains_network(network: Network, other: Network) -> bool:
    if network.version != other.version:
        return False
    wide, narrow = network.network, other.network
    return wide.prefixlen <= narrow.prefixlen and narrow.network_address in wide


def _contains_network_text(network: Network, text: str) -> bool:
    try:
        return _contains_network(network, _cidr(text))
    except CelError as error:
        raise no_overload() from error


def _masked(network: Network) -> Network:
    return ipaddress.ip_interface(str(network.network))


def _is_global_unicast(address: Address) -> bool:
    if address.version == 4 and address == ipaddress.IPv4Address("255.255.255.255"):
        return False
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or _is_link_local_unicast(address)
    )


_LINK_LOCAL = (ipaddress.ip_network("169.254.0.0/16"), ipaddress.ip_network("fe80::/10"))


def _is_link_local_unicast(address: Address) -> bool:
    return any(address.version == net.version and address in net for net in _LINK_LOCAL)


def _is_link_local_multicast(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return address in ipaddress.ip_network("224.0.0.0/24")
    # The four flag bits of a multicast address do not matter, its scope does.
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 2


IMPLEMENTATIONS: dict[str, Implementation] = {
    "string_to_quantity": _quantity,
    "is_quantity_string": _is_quantity,
    "quantity_sign": lambda value: value.quantity.sign,
    "quantity_is_greater_than": lambda a, b: a.quantity.compare(b.quantity) > 0,
    "quantity_is_less_than": lambda a, b: a.quantity.compare(b.quantity) < 0,
    "quantity_compare_to": lambda a, b: a.quantity.compare(b.quantity),
    "quantity_get_float": lambda value: value.quantity.as_float(),
    "quantity_get_int": _as_integer,
    "quantity_is_integer": lambda value: value.quantity.as_int64() is not None,
    "quantity_add": lambda value, other: _added(value, other.quantity),
    "quantity_add_int": lambda value, number: _added(value, Quantity.from_int(number)),
    "quantity_sub": lambda value, other: _subtracted(value, other.quantity),
    "quantity_sub_int": lambda value, number: _subtracted(value, Quantity.from_int(number)),
    "string_to_semver": _semver,
    "string_bool_to_semver": _semver,
    "is_semver_string": _is_semver,
    "is_semver_string_bool": _is_semver,
    "semver_is_greater_than": lambda a, b: a > b,
    "semver_is_less_than": lambda a, b: a < b,
    "semver_compare_to": _order,
    "semver_major": lambda value: _wrapped(value.major),
    "semver_minor": lambda value: _wrapped(value.minor),
    "semver_patch": lambda value: _wrapped(value.patch),
    "string_find_string": lambda text, pattern: regex.find(pattern, text),
    "string_find_all_string": lambda text, pattern: regex.find_all(pattern, text, -1),
    "string_find_all_string_int": lambda text, pattern, limit: regex.find_all(pattern, text, limit),
    "string_to_ip": _ip,
    "is_ip": _is_ip,
    "ip_is_canonical": _is_canonical,
    "ip_family": lambda address: address.version,
    "ip_is_unspecified": lambda address: address.is_unspecified,
    "ip_is_loopback": lambda address: address.is_loopback,
    "ip_is_link_local_multicast": _is_link_local_multicast,
    "ip_is_link_local_unicast": _is_link_local_unicast,
    "ip_is_global_unicast": _is_global_unicast,
    "ip_to_string": str,
    "string_to_cidr": _cidr,
    "is_cidr": _is_cidr,
    "cidr_contains_ip_string": _contains_ip_text,
    "cidr_contains_ip_ip": _contains_ip,
    "cidr_contains_cidr_string": _contains_network_text,
    "cidr_contains_cidr": _contains_network,
    "cidr_ip": lambda network: network.ip,
    "cidr_prefix_length": lambda network: network.network.prefixlen,
    "cidr_masked": _masked,
    "cidr_to_string": str,
}
