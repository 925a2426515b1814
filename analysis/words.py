"""Numbers in sentences: signs, and one of a thing or several."""


def signed(number: float, digits: int = 2) -> str:
    """'+0.12'; what rounds to zero is '+0.00' from either side."""
    return f"{round(number, digits) + 0.0:+.{digits}f}"


def counted(number: float, noun: str, shown: str = "") -> str:
    """'1 run', '1,000 runs'; `shown` in place of the number."""
    text = shown or f"{number:,}"
    return f"{text} {noun}{'' if text == '1' or number == 1 else 's'}"


def images(number: float, shown: str = "") -> str:
    """'1 image', '25,000 images'; `shown` in place of the number."""
    return counted(number, "image", shown)


def exact(number: float) -> str:
    """'0.1', '1.25e+10', and '12500000000.25' where ten digits would show another number."""
    text = f"{number:.10g}"
    return text if float(text) == number else repr(float(number))
